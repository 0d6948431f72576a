"""Which attention a deployment asked for, as every process of its engine sees it: ``additional_config``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from posenc_runtime.encodings.fields import check_fields
from posenc_runtime.vllm_adapter.active import section_of
from posenc_runtime.vllm_adapter.hook import ATTENTION_SECTION

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY = ATTENTION_SECTION
Backend = Literal["auto", "bias", "cope", "stock"]
Kind = Literal["stock", "bias", "cope", "plain"]
FusedRotary = Literal["auto", "on", "off"]
FusedKeys = Literal["pure", "stock"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionChoice:
    """Which attention an engine's layers get, as every process of it sees it.

    Attributes:
        backend: ``auto`` takes ours where a layer has a distance bias or contextual positions, and vLLM's elsewhere;
            ``bias`` and ``cope`` take ours or refuse the model; ``stock`` takes vLLM's or refuses it.
        window_tolerance: the part of a row's attention weights that may be skipped unread where a bias decays; 0 reads
            everything.
        fused_rotary: whether attention rotates queries and keys itself, by exact phases, in the launch that writes the
            cache; ``auto`` does where that was measured to be at least as fast.
        fused_keys: what attention that rotates puts into the cache: ``pure`` rotations, with the attention factor on
            queries alone, squared; or what vLLM's tables put there, ``stock``, with the factor on both. Decision 28.
        needs: what most of the checkpoint's layers are made for; ``plain`` has no kernel.

    Raises:
        ValueError: when a value is out of range.
    """

    backend: Backend = "auto"
    window_tolerance: float = 1e-3
    fused_rotary: FusedRotary = "auto"
    fused_keys: FusedKeys = "pure"
    needs: Kind = "stock"

    def __post_init__(self) -> None:
        check_fields(type(self), vars(self))
        if not 0 <= self.window_tolerance < 1:
            raise ValueError(f"window_tolerance must be at least 0 and below 1, got {self.window_tolerance}")

    @property
    def takes_ours(self) -> bool:
        """Whether layers get a backend of ours."""
        return self.backend in ("bias", "cope") or (self.backend == "auto" and self.needs != "stock")

    def to_mapping(self) -> dict[str, Any]:
        """Plain values only, so that it travels to every process of an engine."""
        return dataclasses.asdict(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """The inverse of ``to_mapping``.

        Raises:
            ValueError: when a key is unknown, or a value is refused.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(mapping) - set(known)):
            raise ValueError(f"known keys are {', '.join(known)}, got {', '.join(unknown)}")
        return cls(**mapping)


def choice_of(vllm_config: VllmConfig | None) -> AttentionChoice | None:
    """The choice of an engine, None where Posenc was not asked for.

    Raises:
        ValueError: when ``additional_config["posenc_attention"]`` is refused; the message names the rule and the value.
    """
    return section_of(vllm_config, KEY, AttentionChoice.from_mapping)


def can_attend(backend: Backend, needs: Kind, *, stock_can: bool) -> bool:
    """Whether layers that are made for one kind of attention can have a backend.

    Args:
        stock_can: whether vLLM's own attention does what they ask for.
    """
    able = {"auto": True, "stock": stock_can, "bias": needs in ("stock", "bias"), "cope": needs == "cope"}
    return able[backend]


def reason_against_backend(backend: Backend, needs: Kind) -> str | None:
    """Why a model that needs one kind of attention cannot have a backend; None where it can, or may.

    What a layer with a distance bias asks of vLLM's own attention is known when it is made, not before.
    """
    if can_attend(backend, needs, stock_can=needs in ("stock", "bias")):
        return None
    if backend == "cope":
        return "must be auto for a model without contextual positions"
    return f"must be auto for a model with {'contextual positions' if needs == 'cope' else 'attention of its own'}"
