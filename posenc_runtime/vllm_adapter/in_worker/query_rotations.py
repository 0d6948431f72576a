"""Finds the rotary embedding that rotates each layer's keys, and tells the layer how its queries turn.

No configuration says it for every model, so the model that vLLM built is asked, as for scales. Decision 66.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kernels.attention.read_time import ReadTime
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.active import turning_deployment_of
from posenc_runtime.vllm_adapter.contract.cache_layers import layer_specs
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.layer_rotations import ROUNDING, noted_keys
from posenc_runtime.vllm_adapter.refusals.turning_backends import is_on_cuda, refuse_other_backends, refuse_page
from posenc_runtime.vllm_adapter.refusals.turning_queries import pages_of

# From the first to the others the fastest pairs turn much, and slower ones enough. The first is not 0, where layers
# that draft leave embeddings out. At later ones than the last, float32 angles are rounded by more than keys are.
_POSITIONS = (1, 2, 8, 65)
_LAST = 1023
# A layer's largest key may be hundreds of times larger than others. Pairs below this share of it are compared with it.
_SMALL = 1e-3


def turn_queries(model: nn.Module, drafter: nn.Module | None, vllm_config: Any) -> None:
    """Tell each layer that turns queries how to turn them; layers that do not rotate stay vLLM's.

    Args:
        drafter: the model that drafts tokens; None where none does, or what drafts is no model. It turns as the model
            does, because it drafts what the model would say at the same places.

    Raises:
        Unsupported: when a layer rotates its keys by none of the model's rotary embeddings, when vLLM gave it attention
            that cannot turn queries, or when a page is no multiple of the cache's blocks; the message names it.
    """
    deployment = turning_deployment_of(vllm_config)
    if deployment is None:
        return
    # All that attend are asked: without metadata, those that are not answer what memory holds.
    layers = {
        name: layer
        for name, layer in vllm_config.compilation_config.static_forward_context.items()
        if hasattr(layer, "impl")
    }
    refuse_other_backends(layers, deployment.rope_type)
    of_drafter = set() if drafter is None else set(drafter.modules())
    drafting = {name: layer for name, layer in layers.items() if layer in of_drafter}
    answering = {name: layer for name, layer in layers.items() if layer not in of_drafter}
    if not _turning(answering):
        raise Unsupported(
            f"scaling.rope_type {deployment.rope_type} needs a layer that sees a whole request, and this model has none"
        )
    _turn(model, answering, deployment, vllm_config, vllm_config.model_config)
    if drafter is not None and _turning(drafting):
        _turn(drafter, drafting, deployment, vllm_config, vllm_config.speculative_config.draft_model_config)


def _turning(layers: Mapping[str, Any]) -> set[str]:
    """The names of the layers whose attention turns queries."""
    return {name for name, layer in layers.items() if getattr(layer.impl, "kind", None) == "read_time"}


def _turn(
    model: nn.Module, layers: Mapping[str, Any], deployment: Deployment, vllm_config: Any, described: Any
) -> None:
    """Tell the layers of one model, which are all that attend in it.

    Args:
        described: vLLM's ``ModelConfig`` of the model.
    """
    device, pages = next(model.parameters()).device, pages_of(deployment, vllm_config.cache_config.block_size)
    if is_on_cuda():
        refuse_page(pages.page)
    turning = _turning(layers)
    rotations = [each for module in model.modules() for each in _rotations_of(module)]
    at = tuple(min(position, deployment.max_model_len - 1) for position in (*_POSITIONS, _LAST))
    for name, keys in noted_keys(model, vllm_config, layers, at, described).items():
        if name not in turning or _error(keys, keys[:1], keys.abs()) <= ROUNDING[keys.dtype]:
            continue
        errors = [_error_of(keys, at, own, is_neox_style) for own, is_neox_style in rotations]
        if min(errors, default=math.inf) > ROUNDING[keys.dtype]:
            raise Unsupported(
                f"scaling.rope_type {deployment.rope_type} needs keys that are rotated from their first element on, by "
                f"one angle for each pair and position, but those of {name} are not: choose another rope_type"
            )
        own, is_neox_style = rotations[errors.index(min(errors))]
        read_time = ReadTime.of(pages, own.inv_freq, is_neox_style=is_neox_style, device=device)
        layers[name].impl.turn_by(read_time, layers[name])
        layers[name].posenc_pages = pages


def refuse_blocks(kv_cache_config: Any, layers: Mapping[str, Any]) -> None:
    """Check that pages are whole blocks, once vLLM has chosen the blocks of each layer.

    Raises:
        Unsupported: when a page of a layer that turns queries is not; the message names the layer.
    """
    for group in kv_cache_config.kv_cache_groups:
        for name, spec in layer_specs(group).items():
            pages = getattr(layers.get(name), "posenc_pages", None)
            if pages is not None and pages.page % spec.block_size:
                raise Unsupported(
                    f"scaling.page must be a multiple of the KV cache's block, which vLLM has made {spec.block_size} "
                    f"tokens long for {name}, got {pages.page}: set page (of dual_chunk, chunk_size less local_size) "
                    "to one, or another engine.block_size"
                )


def _rotations_of(rotary: Any) -> list[tuple[Frequencies, bool]]:
    """How a rotary embedding may rotate: frequencies, and whether a pair is one element of each half.

    An embedding of transformers does not say the latter.
    """
    own = getattr(rotary, "posenc_own", None)
    if own is None or own.inv_freq.is_meta:
        return []
    return [(own, style) for style in ([rotary.is_neox_style] if hasattr(rotary, "is_neox_style") else [True, False])]


def _error_of(keys: Tensor, at: Sequence[int], own: Frequencies, is_neox_style: bool) -> float:
    """How far keys ``[num_tokens, num_kv_heads, head_dim]`` are from those of the first token, rotated.

    Args:
        at: the tokens' positions.

    Returns:
        The largest difference of an element as a share of its pair; infinite where heads are too narrow.
    """
    inv_freq, width = own.inv_freq.double().cpu(), 2 * len(own.inv_freq)
    if width > keys.shape[-1]:
        return math.inf
    distances = torch.tensor(at, dtype=torch.float64) - at[0]
    angles = distances[:, None, None] * inv_freq
    pairs, rest = keys[:1, :, :width].double(), keys[:1, :, width:].double()
    x, y = pairs.chunk(2, dim=-1) if is_neox_style else (pairs[..., ::2], pairs[..., 1::2])

    def joined(first: Tensor, second: Tensor, others: Tensor) -> Tensor:
        both = torch.cat((first, second), -1) if is_neox_style else torch.stack((first, second), -1).flatten(-2)
        return torch.cat((both, others.expand(len(both), -1, -1)), -1)

    rotated = joined(x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin(), rest)
    length = torch.hypot(x, y)
    return _error(keys, rotated, joined(length, length, rest.abs()))


def _error(keys: Tensor, others: Tensor, sizes: Tensor) -> float:
    """The largest difference of an element as a share of its size."""
    sizes = sizes.double() + _SMALL * keys.double().abs().amax()
    return float(((keys.double() - others.double()).abs() / sizes.clamp_min(torch.finfo(torch.float64).tiny)).amax())
