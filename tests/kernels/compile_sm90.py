"""Compile the Triton kernels for an H100 as they would be launched, without one.

Prints, as JSON, the opcodes of each, how many of its programs a multiprocessor has room for, and how many products of
matrices it was to have.
"""

from __future__ import annotations

import json

import torch

from posenc_runtime.kernels.rotary import own_scales, rerotate, rope_rows, rotary_store
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange
from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from posenc_runtime.kernels.rotary.rotary_step import RotaryStep
from tests.kernels import compile_attention
from tests.kernels.launch_sm90 import Launch, MachineCode, opcodes


def rerotation(
    head_dim: int,
    rotary_dim: int,
    is_neox_style: bool,
    num_heads: int = 8,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    rotary_offset: int = 0,
    row_dim: int = 0,
    num_axes: int = 0,
) -> MachineCode:
    launch = Launch(_REROTATE)
    rerotate._rerotate_kernel = launch
    layout = KeyLayout(
        block_size=block_size,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        is_neox_style=is_neox_style,
        rotary_offset=rotary_offset,
        row_dim=row_dim,
        axis_of_pair=torch.arange(rotary_dim // 2) % num_axes if num_axes else None,
    )
    cache = torch.empty(1, block_size, num_heads, layout.row_dim, dtype=dtype).transpose(1, 2)
    block = torch.zeros(1, dtype=torch.int64)
    on_axes = torch.zeros(1, num_axes, block_size, dtype=torch.int64)
    moves = BlockMoves(block, block, positions=on_axes) if num_axes else BlockMoves(block, block, block)
    phases = torch.ones(rotary_dim // 2, dtype=torch.int64)
    rerotate.rerotate([cache], moves, ScaleChange(phases), layout)
    return launch.machine_code()


def rerotation_of_latents(is_neox_style: bool) -> MachineCode:
    """DeepSeek's: a latent of 512 and a key of 64, for all heads, without values."""
    return rerotation(576, 64, is_neox_style, num_heads=1, block_size=64, rotary_offset=512, row_dim=576)


def rerotation_with_own_scales(dtype: torch.dtype, head_dim: int = 128, rotary_dim: int = 128) -> MachineCode:
    launch = Launch(_OWN_SCALES)
    own_scales._own_scales_kernel = launch
    row_dim = 2 * (head_dim + 4)
    layout = KeyLayout(16, head_dim, rotary_dim, True, row_dim=row_dim, has_own_scales=True)
    cache = torch.empty(1, 16, 8, row_dim, dtype=torch.uint8).view(dtype).transpose(1, 2)
    block, phases = torch.zeros(1, dtype=torch.int64), torch.ones(rotary_dim // 2, dtype=torch.int64)
    rerotate.rerotate([cache], BlockMoves(block, block, block), ScaleChange(phases), layout)
    return launch.machine_code()


def row_lookup() -> MachineCode:
    launch = Launch(rope_rows._rope_rows_kernel)
    rope_rows._rope_rows_kernel = launch
    some = torch.zeros(256, dtype=torch.int64)
    rope_rows.rope_rows(some, some, some, 16, some)
    return launch.machine_code()


def rotation(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    is_neox_style: bool,
    in_place: bool = True,
    cache_dtype: torch.dtype = torch.bfloat16,
    out_dtype: torch.dtype = torch.bfloat16,
) -> MachineCode:
    """Of a prompt's tokens, whose queries, keys and values are parts of one projection."""
    launch = Launch(_ROTARY_STORE)
    rotary_store._rotary_store_kernel = launch
    num_tokens, block_size, widths = 2048, 16, [heads * head_dim for heads in (num_heads, num_kv_heads, num_kv_heads)]
    projected = torch.empty(num_tokens, sum(widths), dtype=torch.bfloat16).split(widths, dim=1)
    query, key, value = (part.unflatten(1, (-1, head_dim)) for part in projected)
    cache = torch.empty(1, block_size, num_kv_heads, 2 * head_dim, dtype=cache_dtype).transpose(1, 2)
    of_tokens, one = torch.zeros(num_tokens, dtype=torch.int64), torch.ones(1)
    phases, block_scale = torch.ones(1, rotary_dim // 2, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    scales = RotaryScales(phases, one, block_scale, block_size, is_neox_style)
    out = None if in_place else torch.empty(query.shape, dtype=out_dtype)
    rotary_store.rotary_store(RotaryStep(query, key, value, cache, of_tokens, of_tokens, scales, one, one, out, one))
    return launch.machine_code()


_REROTATE, _ROTARY_STORE = rerotate._rerotate_kernel, rotary_store._rotary_store_kernel
_OWN_SCALES = own_scales._own_scales_kernel

COMPILED = {
    "neox-128": lambda: rerotation(128, 128, True),
    "neox-64": lambda: rerotation(64, 64, True),
    "neox-one-head": lambda: rerotation(128, 128, True, num_heads=1),
    "gptj-128": lambda: rerotation(128, 128, False),
    "gptj-64": lambda: rerotation(64, 64, False),
    "neox-half-of-128": lambda: rerotation(128, 64, True),
    "gptj-half-of-128": lambda: rerotation(128, 64, False),
    "neox-32-of-80": lambda: rerotation(80, 32, True),
    "float32-quarter-in-blocks-of-128": lambda: rerotation(128, 32, False, block_size=128, dtype=torch.float32),
    "neox-latents": lambda: rerotation_of_latents(True),
    "gptj-latents": lambda: rerotation_of_latents(False),
    "neox-end-of-96": lambda: rerotation(96, 32, True, rotary_offset=64),
    "gptj-end-of-96": lambda: rerotation(96, 32, False, rotary_offset=64),
    "neox-192-values-of-128": lambda: rerotation(192, 64, True, row_dim=192 + 128),
    "neox-axes-128": lambda: rerotation(128, 128, True, num_axes=3),
    "gptj-axes-128": lambda: rerotation(128, 128, False, num_axes=3),
    "float8-128": lambda: rerotation(128, 128, True, dtype=torch.float8_e4m3fn),
    "float8-gptj-128": lambda: rerotation(128, 128, False, dtype=torch.float8_e4m3fn),
    "own-scales-int8": lambda: rerotation_with_own_scales(torch.int8),
    "own-scales-float8": lambda: rerotation_with_own_scales(torch.float8_e4m3fn),
    "own-scales-half-of-128": lambda: rerotation_with_own_scales(torch.int8, rotary_dim=64),
    "rope-rows": row_lookup,
}
STORED = {
    "neox-32-to-8-by-128": lambda: rotation(32, 8, 128, 128, True),
    "gptj-half-of-128-out-of-place": lambda: rotation(16, 16, 128, 64, False, in_place=False),
    "float8-28-to-4-by-128": lambda: rotation(
        28, 4, 128, 128, True, in_place=False, cache_dtype=torch.float8_e4m3fn, out_dtype=torch.float8_e4m3fn
    ),
}

if __name__ == "__main__":
    machine_codes = {
        "moved": {name: code() for name, code in COMPILED.items()},
        "stored": {name: code() for name, code in STORED.items()},
        "attention": compile_attention.machine_codes(),
    }
    codes = {name: code for of_part in machine_codes.values() for name, code in of_part.items()}
    programs = {name: code.programs for name, code in codes.items()}
    products = {name: code.products for name, code in codes.items()}
    found = {part: opcodes(of_part) for part, of_part in machine_codes.items()}
    print(json.dumps({"programs": programs, "products": products} | found))
