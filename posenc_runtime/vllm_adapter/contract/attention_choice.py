"""The attention that a deployment asks for. It travels to every process of an engine in ``additional_config``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from posenc_runtime.encodings.fields import check_fields
from posenc_runtime.vllm_adapter.contract.active import section_of
from posenc_runtime.vllm_adapter.contract.names import ATTENTION_SECTION

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY = ATTENTION_SECTION
Backend = Literal["auto", "bias", "cope", "stock"]
Kind = Literal["stock", "bias", "cope", "plain"]
FusedRotary = Literal["auto", "on", "off"]
FusedKeys = Literal["pure", "stock"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionChoice:
    """The attention that an engine's layers get.

    Attributes:
        backend: ``auto`` takes our backend for layers with a distance bias or contextual positions, and vLLM's for
            others. ``bias`` and ``cope`` take ours or refuse the model. ``stock`` takes vLLM's or refuses the model.
        window_tolerance: the share of a row's attention weights that may be skipped unread if the bias decays; 0 reads
            every key.
        fused_rotary: whether attention rotates queries and keys itself, by exact phases, in the launch that writes the
            cache. ``auto`` does so on GPUs where that was measured to be at least as fast.
        fused_keys: what attention that rotates writes into the cache. ``pure``: rotations without the attention factor;
            queries get its square. ``stock``: the keys of vLLM's tables, with the factor on queries and keys.
            Decision 28.
        needs: the backend that most of the checkpoint's layers need; ``plain`` has no kernel.

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
        """The choice as plain values, so that it can be sent to every process of an engine."""
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
    """The choice of an engine; None if its configuration has no section for Posenc's attention.

    Raises:
        ValueError: when ``additional_config["posenc_attention"]`` is refused; the message names the rule and the value.
    """
    return section_of(vllm_config, KEY, AttentionChoice.from_mapping)


def can_attend(backend: Backend, needs: Kind, *, stock_can: bool) -> bool:
    """Whether layers that need one kind of attention can have a backend.

    Args:
        stock_can: whether vLLM's own attention can do what the layers need.
    """
    able = {"auto": True, "stock": stock_can, "bias": needs in ("stock", "bias"), "cope": needs == "cope"}
    return able[backend]


def reason_against_backend(backend: Backend, needs: Kind) -> str | None:
    """Why a model that needs one kind of attention cannot have a backend; None if it can or may.

    Whether vLLM's own attention can compute a layer's distance bias is known only when the layer is built.
    """
    if can_attend(backend, needs, stock_can=needs in ("stock", "bias")):
        return None
    if backend == "cope":
        return "must be auto for a model without contextual positions"
    return (
        f"must be auto for a model with {'contextual positions' if needs == 'cope' else 'attention in plain PyTorch'}"
    )
