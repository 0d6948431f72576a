"""Decides whether a deployment scales a rotary embedding that the model is building, and tells the worker about it.

A checkpoint may have several rotary embeddings: one for layers with a sliding window, one in a vision tower. The
deployment scales the one whose frequencies the checkpoint's configuration gives for layers that see the whole request.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch

from posenc_runtime.encodings.spec import Frequencies, RotarySpec
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.active import deployment_of, engine_of
from posenc_runtime.vllm_adapter.contract.attention_choice import choice_of
from posenc_runtime.vllm_adapter.contract.cached_keys import factor_is_on_queries
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE, Rotary
from posenc_runtime.vllm_adapter.refusals.rotating_attention import is_fused

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

    from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint


def checked_deployment() -> Deployment | None:
    """The deployment of the engine that is being built; None if it has none.

    Raises:
        Unsupported: when the engine's configuration cannot be combined with the deployment.
    """
    from vllm.config.vllm import get_current_vllm_config_or_none

    from posenc_runtime.vllm_adapter.refusals.drafters import is_drafter
    from posenc_runtime.vllm_adapter.refusals.engine import refuse_unsupported

    vllm_config = get_current_vllm_config_or_none()
    deployment = deployment_of(vllm_config)
    if vllm_config is not None and deployment is not None and not is_drafter(vllm_config.model_config):
        refuse_unsupported(vllm_config)
    return deployment


def enter(
    deployment: Deployment, module: Any, own: Frequencies, *, is_neox_style: bool, has_own_factor: bool = True
) -> Rotary | None:
    """Tell the worker about a rotary embedding that is being built, if the deployment scales it.

    Args:
        own: vLLM's rotation at scale 1; ``inv_freq`` is float32.
        has_own_factor: whether the attention factor in ``own`` is the checkpoint's; vLLM may make it from the served
            length.

    Returns:
        None where the embedding is another one than the deployment scales, and stays vLLM's own.

    Raises:
        ValueError: when the deployment's scale 1 differs from the checkpoint's own rotation, a scale has a frequency
            that is not finite or not above 0, or another engine of this process serves with scales.
    """
    from vllm.config.vllm import get_current_vllm_config_or_none

    vllm_config = get_current_vllm_config_or_none()
    checkpoint = None
    if vllm_config is not None and vllm_config.model_config is not None:
        if vllm_config.model_config.uses_mrope and not hasattr(module, "posenc_positions_factor"):
            return None  # of a vision tower: the decoder's has several axes
        checkpoint = _checkpoint_of(vllm_config.model_config, deployment)
    spec = _scaled_spec(deployment, module, own, checkpoint, has_own_factor=has_own_factor)
    if spec is None:
        return None
    rotary = _described(deployment, module, spec, own, vllm_config, checkpoint, is_neox_style=is_neox_style)
    _refuse_beside_another(rotary.engine)
    if vllm_config is not None:
        # vLLM looks up compiled graphs by a hash of additional_config. The setting auto alone would not tell a graph
        # with fused rotation from one without.
        vllm_config.additional_config["posenc_fused"] = rotary.is_fused
    deployment.check_rotations(spec)
    STATE.enter(rotary)
    return rotary


def rows_of_others(deployment: Deployment, module: Any) -> int | None:
    """How many rows the table of an unscaled embedding needs; None in a vision tower, which has few positions.

    vLLM makes tables as long as the configuration of the text says, which for multimodal models is the trained length
    whatever is served.
    """
    from vllm.config.vllm import get_current_vllm_config_or_none

    vllm_config, positions_factor = get_current_vllm_config_or_none(), getattr(module, "posenc_positions_factor", None)
    model_config = None if vllm_config is None else vllm_config.model_config
    if model_config is not None and model_config.uses_mrope and positions_factor is None:
        return None
    return (positions_factor or 1) * deployment.max_model_len


def _scaled_spec(
    deployment: Deployment, module: Any, own: Frequencies, checkpoint: Checkpoint | None, *, has_own_factor: bool
) -> RotarySpec | None:
    """The rotary encoding that an embedding has, if it is the one that the deployment scales.

    Raises:
        ValueError: when the model has no other rotary embedding, and this one differs from the deployment's scale 1.
    """
    trained = deployment.original_max_position_embeddings
    if checkpoint is not None and checkpoint.spec is not None:
        # Base and method are the checkpoint's. A model may know better how much of a head it rotates; but where there
        # are several embeddings, one of another width is another one, of a vision tower for example.
        width = checkpoint.spec.rotary_dim if checkpoint.has_other_rotations else module.rotary_dim
        spec = dataclasses.replace(checkpoint.spec, rotary_dim=width, original_max_position_embeddings=trained)
        if _are_alike(deployment.frequencies(spec, 0), own, has_own_factor=has_own_factor):
            return spec
        if checkpoint.has_other_rotations:
            return None
    # Some models read their base or the width of the rotated part from keys of their own.
    spec = RotarySpec(
        rotary_dim=module.rotary_dim,
        rope_theta=float(module.base),
        original_max_position_embeddings=trained,
    )
    if not _are_alike(deployment.frequencies(spec, 0), own, has_own_factor=has_own_factor):
        raise ValueError(
            f"scale 1 must rotate exactly as the checkpoint does, got another rotation by {deployment.rope_type} with "
            f"{dict(deployment.parameters)}: leave out the parameters that the checkpoint's configuration has"
        )
    return spec


def _are_alike(ours: Frequencies, own: Frequencies, *, has_own_factor: bool) -> bool:
    # A model is built with its own device as the default one, and vLLM may make its frequencies on another.
    frequencies, theirs = ours.inv_freq.cpu(), own.inv_freq.double().cpu()
    return (
        frequencies.shape == theirs.shape
        and torch.allclose(frequencies, theirs, rtol=1e-5, atol=0)
        and (not has_own_factor or math.isclose(ours.attention_factor, own.attention_factor, rel_tol=1e-5))
    )


def _described(
    deployment: Deployment,
    module: Any,
    spec: RotarySpec,
    own: Frequencies,
    vllm_config: VllmConfig | None,
    checkpoint: Checkpoint | None,
    *,
    is_neox_style: bool,
) -> Rotary:
    choice, is_in_attention = choice_of(vllm_config), is_fused(vllm_config)
    is_pure = is_in_attention and (choice is None or choice.fused_keys == "pure")
    return Rotary(
        deployment=deployment,
        head_dim=module.head_size,
        own=spec,
        inv_freq=None if is_in_attention else own.inv_freq,
        is_neox_style=is_neox_style,
        is_fused=is_in_attention,
        factor_on_keys=not (is_pure or factor_is_on_queries(vllm_config, deployment)),
        positions_factor=getattr(module, "posenc_positions_factor", 1),
        has_other_rotations=checkpoint is not None and checkpoint.has_other_rotations,
        module=module,
        engine=engine_of(vllm_config),
    )


def _checkpoint_of(model_config: ModelConfig, deployment: Deployment) -> Checkpoint:
    """The configuration of the checkpoint that is being built, as it was read last.

    A drafter may have been trained on shorter requests than the model: it then drafts worse, and changes no answer.

    Raises:
        ValueError: when the deployment's scale 1 differs from the checkpoint's own rotation.
    """
    from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_again, refuse_another
    from posenc_runtime.vllm_adapter.refusals.drafters import is_drafter

    checkpoint = read_again(model_config)
    trained = deployment.original_max_position_embeddings
    if is_drafter(model_config) and checkpoint.max_position_embeddings is not None:
        trained = min(trained, checkpoint.max_position_embeddings)
    refuse_another(checkpoint, deployment.rope_type, deployment.parameters, trained)
    return checkpoint


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
