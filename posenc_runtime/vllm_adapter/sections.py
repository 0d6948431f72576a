"""Names of our sections in ``additional_config``, which every process of an engine has in its configuration."""

from __future__ import annotations

DEPLOYMENT_SECTION, ATTENTION_SECTION = "posenc", "posenc_attention"
ACCESS_SECTION, LIMITS_SECTION, HEALTH_SECTION = "posenc_access", "posenc_limits", "posenc_health"
ALL_SECTIONS = (DEPLOYMENT_SECTION, ATTENTION_SECTION, ACCESS_SECTION, LIMITS_SECTION, HEALTH_SECTION)
