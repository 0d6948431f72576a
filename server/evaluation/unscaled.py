"""Serves a deployment without its scales: what a comparison of scaled requests begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.deployment.settings import Settings

PREFIX = "unscaled:"


def overrides(settings: Settings) -> list[str]:
    """What ``--set`` gets so that every request runs at scale 1, and may be as long as with the deployment's scales.

    Args:
        settings: of the deployment with its scales.

    Raises:
        SettingRefused: when the deployment is refused.
    """
    from server.start_up.reading import plan_read

    lengths = plan_read(settings).deployment.scale_set.lengths
    found = [
        f"max_model_len={settings.max_model_len or lengths[-1]}",
        "scaling.scales=[1]",
        "scaling.allow_beyond_trained=true",
    ]
    return [*found, "scaling.rope_theta=null"] if settings.scaling.rope_theta else found
