"""Which shapes of heads the attention kernels for GPUs support."""

from __future__ import annotations

import torch

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_MOST_HEADS = 32  # query heads of a KV head; a tile holds all of them for at least one query
_LEAST_DIM, _MOST_BYTES = 16, 1024  # the least numbers and the most bytes of a row in a tile


def row_dim(head_dim: int) -> int:
    """How many numbers a head takes in a tile, whose rows are padded to a power of two."""
    return max(_LEAST_DIM, 1 << (head_dim - 1).bit_length())


def row_bytes(head_dim: int, dtype: torch.dtype) -> int:
    return row_dim(head_dim) * dtype.itemsize


def check_heads(num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    """Refuse heads that do not fit into a tile.

    Raises:
        ValueError: when the data type is not floating point of 2 or 4 bytes, when ``num_kv_heads`` does not divide
            ``num_heads``, when a KV head has too many query heads, or when a head is too wide.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"queries, keys and values must be bfloat16, float16 or float32, got {dtype}")
    if num_heads % num_kv_heads:
        raise ValueError(f"num_kv_heads must divide num_heads, got {num_kv_heads} and {num_heads}")
    if num_heads > _MOST_HEADS * num_kv_heads:
        raise ValueError(f"a KV head must have at most {_MOST_HEADS} query heads, got {num_heads // num_kv_heads}")
    if row_bytes(head_dim, dtype) > _MOST_BYTES:
        raise ValueError(
            f"a head must take at most {_MOST_BYTES} bytes in a tile, got {row_bytes(head_dim, dtype)} bytes for "
            f"head_dim {head_dim} of {dtype}: use a smaller data type, or for a model with ALiBi set attention.backend "
            "to stock"
        )
