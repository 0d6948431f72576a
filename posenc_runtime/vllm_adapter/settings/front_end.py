"""The sections ``access``, ``limits`` and ``health``: who may ask the server for what, how much, and what the probes
of its health say. Checked strictly.

They travel to the API server in ``additional_config``, and are read there before the engine starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from posenc_runtime.vllm_adapter.hook import ACCESS_SECTION, HEALTH_SECTION, LIMITS_SECTION


class AccessSettings(BaseModel):
    """Who may ask for what."""

    model_config = ConfigDict(extra="forbid", strict=True)


class LimitSettings(BaseModel):
    """How much one request, and all requests together, may ask for."""

    model_config = ConfigDict(extra="forbid", strict=True)


class HealthSettings(BaseModel):
    """When the server counts as healthy.

    Attributes:
        stalled_seconds: for how long the engine may answer nothing and still count as ready. One step may take so long:
            a long prompt on a CPU takes half a minute.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    stalled_seconds: float = Field(default=60.0, gt=0)


class FrontEndSettings(BaseModel):
    """All of these sections."""

    model_config = ConfigDict(extra="forbid", strict=True)

    access: AccessSettings = Field(default_factory=AccessSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    health: HealthSettings = Field(default_factory=HealthSettings)

    def to_additional_config(self) -> dict[str, Any]:
        """What was set, as keys of vLLM's ``additional_config``; a section that says nothing is left out."""
        said = self.model_dump(mode="json", exclude_unset=True)
        return {_KEYS[name]: section for name, section in said.items() if section}

    @classmethod
    def of_additional_config(cls, additional: Mapping[str, Any] | None) -> Self:
        """The inverse of ``to_additional_config``; other keys are not looked at.

        Raises:
            ValidationError: when a section is refused.
        """
        given = additional or {}
        return cls.model_validate({name: given[key] for name, key in _KEYS.items() if key in given})


_KEYS = {"access": ACCESS_SECTION, "limits": LIMITS_SECTION, "health": HEALTH_SECTION}
