"""Finds the rotary embedding that rotates each layer's keys, and tells the layer how its queries turn.

No configuration says it for every model, so the model that vLLM built is asked, as for scales. Decision 66.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kernels.attention.read_time import ReadTime
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.active import turning_deployment_of
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.layer_rotations import are_equal, noted_keys
from posenc_runtime.vllm_adapter.refusals.turning_backends import is_on_cuda, refuse_other_backends, refuse_page
from posenc_runtime.vllm_adapter.refusals.turning_queries import pages_of

# From the first to the others the fastest pairs turn much, and slower ones enough. The first is not 0, where layers
# that draft leave embeddings out.
_POSITIONS = (1, 2, 8, 65)


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
    _turn(model, answering, deployment, vllm_config)
    if drafter is not None and _turning(drafting):
        _turn(drafter, drafting, deployment, vllm_config)


def _turning(layers: Mapping[str, Any]) -> set[str]:
    """The names of the layers whose attention turns queries."""
    return {name for name, layer in layers.items() if getattr(layer.impl, "kind", None) == "read_time"}


def _turn(model: nn.Module, layers: Mapping[str, Any], deployment: Deployment, vllm_config: Any) -> None:
    """Tell the layers of one model, which are all that attend in it."""
    device, pages = next(model.parameters()).device, pages_of(deployment, vllm_config.cache_config.block_size)
    if is_on_cuda():
        refuse_page(pages.page)
    turning = _turning(layers)
    rotations = [each for module in model.modules() for each in _rotations_of(module)]
    for name, keys in noted_keys(model, vllm_config, layers, _POSITIONS).items():
        if name not in turning or are_equal(keys, keys[:1].expand_as(keys)):
            continue
        for own, is_neox_style in rotations:
            if are_equal(keys, _rotated(keys[:1], own, is_neox_style)):
                read_time = ReadTime.of(pages, own.inv_freq, is_neox_style=is_neox_style, device=device)
                layers[name].impl.turn_by(read_time, layers[name])
                break
        else:
            raise Unsupported(
                f"scaling.rope_type {deployment.rope_type} needs keys that are rotated from their first element on, by "
                f"one angle for each pair and position, but those of {name} are not: choose another rope_type"
            )


def _rotations_of(rotary: Any) -> list[tuple[Frequencies, bool]]:
    """How a rotary embedding may rotate: frequencies, and whether a pair is one element of each half.

    An embedding of transformers does not say the latter.
    """
    own = getattr(rotary, "posenc_own", None)
    if own is None:
        return []
    return [(own, style) for style in ([rotary.is_neox_style] if hasattr(rotary, "is_neox_style") else [True, False])]


def _rotated(at_first: Tensor, own: Frequencies, is_neox_style: bool) -> Tensor:
    """Keys ``[1, num_kv_heads, head_dim]`` of the first position as they would be at each of ``_POSITIONS``."""
    inv_freq = own.inv_freq.double().cpu()
    distances = torch.tensor(_POSITIONS, dtype=torch.float64) - _POSITIONS[0]
    angles = distances[:, None, None] * inv_freq
    width, keys = 2 * len(inv_freq), at_first.double()
    pairs, rest = keys[..., :width], keys[..., width:]
    x, y = pairs.chunk(2, dim=-1) if is_neox_style else (pairs[..., ::2], pairs[..., 1::2])
    turned = x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin()
    rotated = torch.cat(turned, -1) if is_neox_style else torch.stack(turned, -1).flatten(-2)
    return torch.cat((rotated, rest.expand(len(_POSITIONS), -1, -1)), -1)
