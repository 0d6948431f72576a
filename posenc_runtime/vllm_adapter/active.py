"""The deployment that an engine was started with, as every process of it sees it: ``additional_config["posenc"]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.hook import DEPLOYMENT_SECTION

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY = DEPLOYMENT_SECTION


def deployment_of(vllm_config: VllmConfig | None) -> Deployment | None:
    """The deployment of an engine, None where Posenc was not asked for.

    Raises:
        ValueError: when ``additional_config["posenc"]`` is refused; the message names the rule and the value.
    """
    additional = getattr(vllm_config, "additional_config", None)
    if not isinstance(additional, Mapping) or KEY not in additional:
        return None
    try:
        return Deployment.from_mapping(additional[KEY])
    except (ValueError, TypeError) as error:
        raise ValueError(f"additional_config.{KEY}: {error}") from error
