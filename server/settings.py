"""Every setting of a deployment, checked strictly."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from posenc_runtime.encodings.scaling import available, method
from posenc_runtime.kv.deployment import Deployment, OnCrossing, PrefixReuse
from posenc_runtime.vllm_adapter.attention.choice import AttentionChoice, Backend, FusedKeys, FusedRotary
from server.parameters import parameters_model


class ScalingSettings(BaseModel):
    """How requests past the trained length are rotated. Method parameters are keys of this section, too.

    Attributes:
        rope_type: the method: a file of ``posenc_runtime/encodings/scaling``.
        original_max_position_embeddings: trained length, tokens; the checkpoint's own when left out.
        scales: ascending, starting at 1; a request at scale s may grow to s times the trained length.
        headroom_tokens: new tokens that a request is admitted for at most, unless it is pinned.
        on_crossing: what happens to a request that outgrows its scale: ``rerotate`` turns its cached keys,
            ``recompute`` prefills it again, ``pin`` admits it at the largest length that it may reach.
        rerotate_budget_tokens: cached tokens re-rotated before one step at most; measured when left out, so that a
            step takes twice as long as usual at most.
        prefix_reuse: which cached prefixes a new request may read: ``exact``, those of its own scale; ``rerotate``,
            others, too, as re-rotated copies, which is an approximation.
        rope_theta: base of the scaled frequencies; the checkpoint's own when left out.
        allow_beyond_trained: let ``default`` serve lengths past the trained one, for comparisons.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    rope_type: str = "default"
    original_max_position_embeddings: int | None = Field(default=None, ge=1)
    scales: list[float] = [1.0]
    headroom_tokens: int = Field(default=Deployment.headroom_tokens, ge=1)
    on_crossing: OnCrossing = Deployment.on_crossing
    rerotate_budget_tokens: int | None = Field(default=Deployment.rerotate_budget_tokens, ge=1)
    prefix_reuse: PrefixReuse = Deployment.prefix_reuse
    rope_theta: float | None = Field(default=None, gt=1)
    allow_beyond_trained: bool = False

    @model_validator(mode="after")
    def _method_parameters(self) -> Self:
        if self.rope_type not in available():
            raise ValueError(f"rope_type must be one of {', '.join(available())}, got {self.rope_type!r}")
        parameters_model(self.rope_type).model_validate(self.parameters)
        method(self.rope_type)(**self.parameters)
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The method's own parameters, as given."""
        return dict(self.model_extra or {})


class AttentionSettings(BaseModel):
    """Which attention layers get.

    Attributes:
        backend: ``auto`` takes ours where a layer has a distance bias or contextual positions, and vLLM's elsewhere;
            ``bias`` and ``cope`` take ours or refuse the model; ``stock`` takes vLLM's or refuses it.
        window_tolerance: the part of a row's attention weights that may be skipped unread where a bias decays; 0 reads
            everything.
        fused_rotary: on NVIDIA GPUs, whether attention rotates queries and keys itself, by exact phases, in the launch
            that writes the cache; ``auto`` does where that was measured to be at least as fast.
        fused_keys: what is cached then: ``pure`` rotations, so that re-rotating leaves unchanged pairs as they are, or
            what vLLM's own tables cache, ``stock``, with the attention factor on keys.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    backend: Backend = AttentionChoice.backend
    window_tolerance: float = Field(default=AttentionChoice.window_tolerance, ge=0, lt=1)
    fused_rotary: FusedRotary = AttentionChoice.fused_rotary
    fused_keys: FusedKeys = AttentionChoice.fused_keys

    @field_validator("fused_rotary", mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        """YAML 1.1 reads on and off as truth values."""
        return ("on" if value else "off") if isinstance(value, bool) else value


class HttpSettings(BaseModel):
    """Where the server listens. Any other key is a front-end argument of vLLM (``api_key``, ``chat_template``, ...)."""

    model_config = ConfigDict(extra="allow", strict=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)

    @property
    def arguments(self) -> dict[str, Any]:
        """vLLM's front-end arguments: where to listen, and the others as given."""
        return {"host": self.host, "port": self.port, **(self.model_extra or {})}


class Settings(BaseSettings):
    """One deployment.

    Attributes:
        model: a folder or a name on a hub, anything that vLLM takes. A path that starts with a dot is relative to
            the file that says it, and ``package:NAME/PATH`` is a folder of an installed Python package.
        served_model_name: what clients call it; the model's own name when left out.
        max_model_len: longest request, tokens; what the largest scale reaches when left out.
        engine: any engine argument of vLLM.
    """

    model_config = SettingsConfigDict(extra="forbid", strict=True, protected_namespaces=())

    model: str
    served_model_name: str | None = Field(default=None, min_length=1)
    max_model_len: int | None = Field(default=None, ge=1)
    scaling: ScalingSettings = Field(default_factory=ScalingSettings)
    attention: AttentionSettings = Field(default_factory=AttentionSettings)
    engine: dict[str, Any] = {}
    server: HttpSettings = Field(default_factory=HttpSettings)
