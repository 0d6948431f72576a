"""Gives attention layers that rotate the scales of all blocks, once the number of blocks is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from posenc_runtime.vllm_adapter.in_worker.worker_state import Rotary

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def rotate_in_attention(
    vllm_config: VllmConfig, block_size: Mapping[str, int], rotaries: Sequence[Rotary], block_scale: Tensor
) -> None:
    """Give every attention layer the scales of all blocks.

    Args:
        block_size: attention layer to tokens per block of its KV cache group.
        rotaries: the rotary embeddings of this engine.
        block_scale: int64 ``[num_blocks]``, the number of the scale that each physical block carries.

    Raises:
        ValueError: when rotary embeddings differ, or a layer got attention that does not rotate.
    """
    rotary = rotaries[0]
    if any(other != rotary for other in rotaries):
        raise ValueError(
            f"attention.fused_rotary needs one rotary embedding for all layers, but this model built {len(rotaries)} "
            "that differ: set attention.fused_rotary to off"
        )
    frequencies = [rotary.frequencies(index) for index in range(len(rotary.deployment.scales))]
    of_size = {
        size: RotaryScales.of(frequencies, block_scale, size, rotary.is_neox_style, rotary.factor_on_keys)
        for size in set(block_size.values())
    }
    layers = vllm_config.compilation_config.static_forward_context
    for name, size in block_size.items():
        rotate_by = getattr(layers[name].impl, "rotate_by", None)
        if rotate_by is None:
            raise ValueError(
                f"attention.fused_rotary needs FLASH_ATTN or TRITON_ATTN for every layer, but vLLM gave {name} "
                f"{layers[name].attn_backend.get_name()}: set engine.attention_backend to one of the two, or "
                "attention.fused_rotary to off"
            )
        if layers[name].head_size != rotary.head_dim:
            raise ValueError(
                f"attention.fused_rotary needs a rotary embedding that gets whole heads, but {name} has heads of "
                f"{layers[name].head_size} elements, and the rotary embedding gets {rotary.head_dim}: set "
                "attention.fused_rotary to off"
            )
        rotate_by(of_size[size])
