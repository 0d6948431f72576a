"""Reads our sections of ``additional_config``, which every process of an engine has in its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.names import DEPLOYMENT_SECTION

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY = DEPLOYMENT_SECTION
_Section = TypeVar("_Section")


def deployment_of(vllm_config: VllmConfig | None) -> Deployment | None:
    """The deployment of an engine, None where Posenc was not asked for.

    Raises:
        ValueError: when ``additional_config["posenc"]`` is refused; the message names the rule and the value.
    """
    return section_of(vllm_config, KEY, Deployment.from_mapping)


def turning_deployment_of(vllm_config: VllmConfig | None) -> Deployment | None:
    """The deployment of an engine whose queries turn when they read keys; None for any other engine.

    Raises:
        ValueError: as ``deployment_of``.
    """
    deployment = deployment_of(vllm_config)
    return deployment if deployment is not None and deployment.turns_queries else None


def engine_of(vllm_config: VllmConfig | None) -> str:
    """What tells an engine of this process from the others.

    A part of a model, such as the language model behind a vision tower, is built with a configuration of its own. It
    shares what this name is made of.
    """
    if vllm_config is None:
        return ""
    transfer = vllm_config.kv_transfer_config
    if transfer is None:
        return str(vllm_config.instance_id)
    return f"{transfer.engine_id} {id(vllm_config.compilation_config)}"


def section_of(
    vllm_config: VllmConfig | None, key: str, from_mapping: Callable[[Mapping[str, Any]], _Section]
) -> _Section | None:
    """A section of ours in ``additional_config``, None where it has none.

    Raises:
        ValueError: when the section is refused; the message names the key, the rule and the value.
    """
    additional = getattr(vllm_config, "additional_config", None)
    if not isinstance(additional, Mapping) or key not in additional:
        return None
    try:
        return from_mapping(additional[key])
    except (ValueError, TypeError) as error:
        raise ValueError(f"additional_config.{key}: {error}") from error
