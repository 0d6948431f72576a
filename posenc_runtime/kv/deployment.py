"""What one deployment decided about scaling: the strict form of the configuration's ``scaling`` section."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from posenc_runtime.encodings import read_time
from posenc_runtime.encodings.far_pages import FarPages, ReadTimeMethod
from posenc_runtime.encodings.fields import check_fields
from posenc_runtime.encodings.methods import turns_queries
from posenc_runtime.encodings.scaling import from_parameters
from posenc_runtime.encodings.spec import Frequencies, RotarySpec, Scaling
from posenc_runtime.kv.scales import ScaleSet, refuse_scales

# The rope_type of a deployment whose model has no rotary embedding, so that there is nothing to scale.
UNROTATED = "none"

# What only scales need.
_OF_SCALES = (
    *("scales", "headroom_tokens", "on_crossing", "rerotate_budget_tokens", "prefix_reuse", "rope_theta"),
    "allow_beyond_trained",
)

OnCrossing = Literal["rerotate", "recompute", "pin"]
PrefixReuse = Literal["exact", "rerotate", "continue"]


def refuse_contradictions(scales: Sequence[float], rope_theta: float | None, allow_beyond_trained: bool) -> None:
    """Check settings against each other, as far as neither lengths nor a checkpoint are needed.

    Several scales are accepted with every method here: only the checkpoint says whether its model can be scaled.

    Raises:
        ValueError: when two settings contradict each other, or the scales alone are refused.
    """
    if rope_theta is not None and rope_theta <= 1:
        raise ValueError(f"rope_theta must be greater than 1, got {rope_theta}")
    if rope_theta is not None and len(scales) == 1:
        raise ValueError(
            f"rope_theta needs a scale above 1, got {rope_theta} and scales {list(scales)}: add a scale, or leave "
            "rope_theta out, because scale 1 always uses the checkpoint's own"
        )
    if allow_beyond_trained and len(scales) > 1:
        raise ValueError(
            f"allow_beyond_trained is only for scales [1], got {list(scales)}: a scaled deployment covers "
            "max_model_len by its largest scale"
        )
    refuse_scales(scales)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
    """Everything that decides how keys are rotated, in every process of an engine.

    Attributes:
        rope_type: name of a method in ``encodings/scaling`` or ``encodings/read_time``, or ``UNROTATED``.
        parameters: the method's own, under Hugging Face's names.
        scales: ascending, starting at 1.
        original_max_position_embeddings: trained length, tokens.
        max_model_len: served length, tokens.
        headroom_tokens: the most new tokens that a request is admitted for, unless it is pinned.
        on_crossing: what happens to a request that outgrows its scale. ``rerotate`` turns its cached keys by the
            angle difference; ``recompute`` drops them and prefills again; ``pin`` admits it at the largest length it
            may reach, so that it never crosses.
        rerotate_budget_tokens: the most cached tokens that are re-rotated before one step, so that other requests are
            not held up. With None the workers measure how many they turn in the time of a usual step (``kv.budget``).
        prefix_reuse: which cached prefixes a new request may read. ``exact``: prefixes of its own scale. ``rerotate``:
            prefixes of other scales, too, as re-rotated copies. The copies are an approximation, because values and
            deeper keys were computed at the other scale. ``continue``: what requests have cached that began at its own
            or a smaller scale, whether they have crossed since or not; it goes on as they would (``kv.histories``).
        rope_theta: base of the frequencies at scales above 1; None takes the checkpoint's. Scale 1 always uses the
            checkpoint's.
        allow_beyond_trained: with scale 1 alone, let requests grow past the trained length: for comparisons, because a
            distance bias is made for it, or because no rotated distance grows with the request.

    Raises:
        ValueError: when a value is out of range or two contradict each other.
        TypeError: when the method has no such parameter.
    """

    rope_type: str
    original_max_position_embeddings: int
    max_model_len: int
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scales: tuple[float, ...] = (1.0,)
    headroom_tokens: int = 256
    on_crossing: OnCrossing = "rerotate"
    rerotate_budget_tokens: int | None = None
    prefix_reuse: PrefixReuse = "exact"
    rope_theta: float | None = None
    allow_beyond_trained: bool = False

    def __post_init__(self) -> None:
        check_fields(type(self), vars(self))
        if self.original_max_position_embeddings < 1:
            raise ValueError(
                f"original_max_position_embeddings must be at least 1, got {self.original_max_position_embeddings}"
            )
        if self.headroom_tokens < 1:
            raise ValueError(f"headroom_tokens must be at least 1, got {self.headroom_tokens}")
        if self.rerotate_budget_tokens is not None and self.rerotate_budget_tokens < 1:
            raise ValueError(
                f"rerotate_budget_tokens must be at least 1, got {self.rerotate_budget_tokens}: leave it out, and the "
                "workers measure it"
            )
        if self.prefix_reuse == "continue" and self.on_crossing != "rerotate":
            raise ValueError(
                f"prefix_reuse must be exact or rerotate where on_crossing is {self.on_crossing}, got continue: a "
                "request goes on from what others have cached only if its keys can be turned when it crosses. Set "
                "on_crossing to rerotate, or leave prefix_reuse out"
            )
        refuse_contradictions(self.scales, self.rope_theta, self.allow_beyond_trained)
        if self.rope_type in ("default", UNROTATED) and len(self.scales) > 1:
            raise ValueError(
                f"scales must be [1] when rope_type is {self.rope_type}, which does not scale, got "
                f"{list(self.scales)}: choose another rope_type, or leave scales out"
            )
        if self.turns_queries:
            self._refuse_scales()
        _ = self.scale_set
        if self.turns_queries:
            self.pages()
        elif self.rotates:
            _ = self.method

    def _refuse_scales(self) -> None:
        """Refuse what only scales need.

        Raises:
            ValueError: when it is set.
        """
        for name in _OF_SCALES:
            default = next(field.default for field in dataclasses.fields(self) if field.name == name)
            if (value := getattr(self, name)) != default:
                raise ValueError(
                    f"{name} must be left out where rope_type is {self.rope_type}, which turns queries and has no "
                    f"scales, got {list(value) if isinstance(value, tuple) else value}"
                )

    @functools.cached_property
    def method(self) -> Scaling:
        """The method that scales. Where queries turn, keys are rotated as the model was trained."""
        return (
            from_parameters("default", {}) if self.turns_queries else from_parameters(self.rope_type, self.parameters)
        )

    @property
    def turns_queries(self) -> bool:
        """Whether queries past the trained length are turned when they read keys, which then have no scales."""
        return turns_queries(self.rope_type)

    @functools.cached_property
    def read_time(self) -> ReadTimeMethod:
        """The method by which queries are turned, where they are."""
        return read_time.from_parameters(self.rope_type, self.parameters)

    def pages(self, block_size: int | None = None) -> FarPages:
        """Where queries turn: for which keys, and how far.

        Args:
            block_size: tokens of a block of the KV cache, of which a page is a multiple. None leaves it unchecked.

        Raises:
            ValueError: when the method's parameters do not fit the trained length or the block.
        """
        return self.read_time.pages(self.original_max_position_embeddings, block_size)

    @functools.cached_property
    def scale_set(self) -> ScaleSet:
        return ScaleSet(
            scales=self.scales,
            original_max_position_embeddings=self.original_max_position_embeddings,
            max_model_len=self.max_model_len,
            allow_beyond_trained=self.allow_beyond_trained or self.turns_queries,
        )

    def frequencies(self, own: RotarySpec, scale_index: int) -> Frequencies:
        """The frequencies by which keys are rotated at one of the scales.

        Args:
            own: the checkpoint's rotary encoding. The deployment's trained length replaces the one in it.

        Raises:
            ValueError: when the method cannot scale such a checkpoint.
        """
        base = own.rope_theta if scale_index == 0 or self.rope_theta is None else self.rope_theta
        spec = dataclasses.replace(
            own, rope_theta=base, original_max_position_embeddings=self.original_max_position_embeddings
        )
        return self.method.frequencies(spec, self.scales[scale_index])

    def softmax_factor(self, scale_index: int) -> float:
        """What a scale multiplies the softmax scale by, where a model's attention takes such a factor (MLA)."""
        factor = getattr(self.method, "softmax_factor", None)
        return 1.0 if factor is None else float(factor(self.scales[scale_index]))

    def check_rotations(self, own: RotarySpec) -> None:
        """Refuse settings that give frequencies which no key can be rotated by.

        A method may let pairs stand still, and then gives them 0. A frequency that only float32 makes 0 is none that
        anybody asked for.

        Raises:
            ValueError: as ``frequencies``; when a frequency is not finite or below 0, or becomes 0 in float32; when no
                pair turns; and when an attention factor is not finite or not above 0.
        """
        import torch

        for index, scale in enumerate(self.scales):
            found = self.frequencies(own, index)
            turning = found.inv_freq[: own.num_turning_pairs]
            rounded = turning.float()
            is_asked_for = rounded.isfinite() & ((rounded > 0) | (turning == 0))
            factor = torch.tensor(found.attention_factor).item()
            if not (is_asked_for.all() and rounded.max() > 0 and math.isfinite(factor) and factor > 0):
                slowest, fastest = (limit.item() for limit in rounded.aminmax())
                raise ValueError(
                    f"rope_type: {self.rope_type} must give frequencies and an attention factor that are finite and "
                    f"greater than 0 in float32, got {slowest:g} to {fastest:g} rad a token and "
                    f"{found.attention_factor:g} at scale {scale:g}: check its parameters and rope_theta"
                )

    @property
    def rotates(self) -> bool:
        """Whether the model has a rotary embedding at all."""
        return self.rope_type != UNROTATED

    @property
    def scales_keys(self) -> bool:
        """Whether keys are rotated by the scale of their request; scale 1 may be the only one."""
        return self.rotates and not self.turns_queries

    @property
    def crosses(self) -> bool:
        """Whether a request can outgrow its scale and go on at another."""
        return self.on_crossing != "pin" and len(self.scales) > 1

    @property
    def rerotates(self) -> bool:
        """Whether cached keys can be turned from one scale to another."""
        return "rerotate" in (self.on_crossing, self.prefix_reuse) and len(self.scales) > 1

    @property
    def measures_budget(self) -> bool:
        """Whether the workers measure how many tokens are turned before a step."""
        return self.rerotates and self.rerotate_budget_tokens is None

    @property
    def reuses_prefixes(self) -> bool:
        """Whether a new request may get copies of prefixes that are cached at other scales."""
        return self.prefix_reuse == "rerotate" and len(self.scales) > 1

    @property
    def continues(self) -> bool:
        """Whether a new request may go on from what requests of smaller first scales have cached."""
        return self.prefix_reuse == "continue" and len(self.scales) > 1

    @property
    def takes_prefixes(self) -> bool:
        """Whether a new request may use prefixes of other scales or histories than the one it is admitted to."""
        return self.reuses_prefixes or self.continues

    @property
    def changes_scales(self) -> bool:
        """Whether a request, or a prefix that it reuses, can go from one scale to another."""
        return self.crosses or self.rerotates

    def to_mapping(self) -> dict[str, Any]:
        """The deployment as plain values, so that it can be sent to every process of an engine.

        Where queries turn, what only scales need is left out, as a user has to leave it out.
        """
        fields = dataclasses.asdict(self) | {"parameters": dict(self.parameters), "scales": list(self.scales)}
        return {name: value for name, value in fields.items() if not (self.turns_queries and name in _OF_SCALES)}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """The inverse of ``to_mapping``. Users of plain vLLM pass their settings in this form, too.

        Raises:
            ValueError: when ``mapping`` is no mapping, a key is unknown or missing, or a value is refused.
            TypeError: when the method has no such parameter.
        """
        if not isinstance(mapping, Mapping):
            raise ValueError(f"a deployment must be a mapping, got {mapping!r}")
        known = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(mapping) - set(known)):
            raise ValueError(
                f"a deployment's keys must be among {', '.join(sorted(known))}, got {', '.join(unknown)}: correct the "
                "name, or leave the key out"
            )
        required = [name for name, field in known.items() if field.default is field.default_factory]
        if missing := [name for name in required if name not in mapping]:
            raise ValueError(f"{', '.join(missing)} must be given")
        values = dict(mapping)
        check_fields(cls, values)
        if "scales" in values:
            values["scales"] = tuple(float(scale) for scale in values["scales"])
        return cls(**values)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Names the rotations of a deployment: two with equal fingerprints rotate keys equally at each scale."""
        rotation = {
            "rope_type": self.rope_type,
            "parameters": dict(self.parameters),
            "original_max_position_embeddings": self.original_max_position_embeddings,
            "rope_theta": self.rope_theta,
        }
        return hashlib.sha256(json.dumps(rotation, sort_keys=True).encode()).hexdigest()[:16]
