"""Names of our sections in ``additional_config``, which every process of an engine has in its configuration."""

from __future__ import annotations

DEPLOYMENT_SECTION, ATTENTION_SECTION = "posenc", "posenc_attention"
ACCESS_SECTION, LIMITS_SECTION, HEALTH_SECTION = "posenc_access", "posenc_limits", "posenc_health"
ALL_SECTIONS = (DEPLOYMENT_SECTION, ATTENTION_SECTION, ACCESS_SECTION, LIMITS_SECTION, HEALTH_SECTION)
# By the names that a deployment's file has for the sections.
SECTION_KEYS = dict(zip(("scaling", "attention", "access", "limits", "health"), ALL_SECTIONS, strict=True))
