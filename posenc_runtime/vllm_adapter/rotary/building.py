"""Checks a rotary embedding when the model of an engine with a deployment builds it, and tells the worker about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.active import deployment_of
from posenc_runtime.vllm_adapter.attention.choice import choice_of
from posenc_runtime.vllm_adapter.attention.fused_rotary.asked import is_fused
from posenc_runtime.vllm_adapter.worker.worker_state import STATE, Rotary

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def checked_deployment() -> Deployment | None:
    """The deployment of the engine that is being built; None if it has none.

    Raises:
        Unsupported: when the engine's configuration cannot be combined with the deployment.
    """
    from vllm.config.vllm import get_current_vllm_config_or_none

    from posenc_runtime.vllm_adapter.refusals.engine import refuse_unsupported

    vllm_config = get_current_vllm_config_or_none()
    deployment = deployment_of(vllm_config)
    if vllm_config is not None and deployment is not None:
        refuse_unsupported(vllm_config)
    return deployment


def enter(deployment: Deployment, module: Any, inv_freq: Tensor, *, is_neox_style: bool) -> Rotary:
    """Check a rotary embedding that is being built with the checkpoint's ``base``, and tell the worker about it.

    Args:
        inv_freq: rad / token, vLLM's frequencies at scale 1.

    Raises:
        ValueError: when the deployment's scale 1 differs from the checkpoint's own rotation, a scale has a frequency
            that is not finite or not above 0, or another engine of this process serves with scales.
    """
    from vllm.config.vllm import get_current_vllm_config_or_none

    vllm_config = get_current_vllm_config_or_none()
    rotary = _described(deployment, module, inv_freq, vllm_config, is_neox_style=is_neox_style)
    _refuse_beside_another(rotary.engine)
    if vllm_config is not None:
        _refuse_another_checkpoint(deployment, vllm_config)
        # vLLM looks up compiled graphs by a hash of additional_config. The setting auto alone would not tell a graph
        # with fused rotation from one without.
        vllm_config.additional_config["posenc_fused"] = rotary.is_fused
    deployment.check_rotations(rotary.own)
    _refuse_unlike(rotary, inv_freq)
    STATE.enter(rotary)
    return rotary


def _described(
    deployment: Deployment, module: Any, inv_freq: Tensor, vllm_config: VllmConfig | None, *, is_neox_style: bool
) -> Rotary:
    choice, is_in_attention = choice_of(vllm_config), is_fused(vllm_config)
    return Rotary(
        deployment=deployment,
        head_dim=module.head_size,
        own=RotarySpec(
            rotary_dim=module.rotary_dim,
            rope_theta=float(module.base),
            original_max_position_embeddings=deployment.original_max_position_embeddings,
        ),
        inv_freq=None if is_in_attention else inv_freq,
        is_neox_style=is_neox_style,
        is_fused=is_in_attention,
        factor_on_keys=not is_in_attention or (choice is not None and choice.fused_keys == "stock"),
        module=module,
        engine="" if vllm_config is None else vllm_config.instance_id,
    )


def _refuse_another_checkpoint(deployment: Deployment, vllm_config: VllmConfig) -> None:
    from posenc_runtime.vllm_adapter.checkpoints.checkpoint import read_again, refuse_another

    if vllm_config.model_config is not None:
        trained = deployment.original_max_position_embeddings
        refuse_another(read_again(vllm_config.model_config), deployment.rope_type, deployment.parameters, trained)


def _refuse_beside_another(engine: str) -> None:
    """Refuse a second engine with scales in this process, because ``STATE`` holds the blocks of one engine.

    Raises:
        ValueError: when vLLM's connector belongs to another engine, which was not shut down.
    """
    from vllm.distributed.kv_transfer import has_kv_transfer_group

    if has_kv_transfer_group() and any(rotary.engine != engine for rotary in STATE.rotaries):
        raise ValueError(
            "a process can have only one engine with scales at a time, and an earlier one is still there: call "
            "engine_core.shutdown() of the earlier engine, or start each engine in its own process"
        )


def _refuse_unlike(made: Rotary, inv_freq: Tensor) -> None:
    """Refuse parameters of a method that contradict the checkpoint's own, which are only known here.

    Args:
        inv_freq: the checkpoint's own frequencies.

    Raises:
        ValueError: when the frequencies of scale 1 differ from the checkpoint's own.
    """
    # A model is built with its own device as the default one, and vLLM may make its frequencies on another.
    ours, own = made.deployment.frequencies(made.own, 0).inv_freq.cpu(), inv_freq.double().cpu()
    if not torch.allclose(ours, own, rtol=1e-5, atol=0):
        raise ValueError(
            f"scale 1 must rotate exactly as the checkpoint does, got another rotation by {made.deployment.rope_type} "
            f"with {dict(made.deployment.parameters)}: leave out the parameters that the checkpoint's configuration has"
        )
