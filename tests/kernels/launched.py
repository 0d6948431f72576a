"""What steps launch on a GPU, and of how many programs, found over tensors without numbers; prints it as JSON.

Whoever would have to ask the device for a number, or copy from it or to it, raises here.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posenc_runtime.encodings.distance import Linear
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.window import Window, zero_norms
from posenc_runtime.kernels.rotary import rope_rows, rotary_store
from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from posenc_runtime.kernels.rotary.rotary_step import RotaryStep
from tests.kernels.compile_attention import KERNELS

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, NUM_BLOCKS, REQUESTS, LENGTH = 32, 8, 128, 16, 64, 4, 4096
ALL = KERNELS | {
    "rope-rows": (rope_rows, "_rope_rows_kernel"),
    "rotary-store": (rotary_store, "_rotary_store_kernel"),
}
MANY = 256, 131_072  # requests, and the tokens that each may have
FORM = Linear(torch.ones(HEADS))  # looks at its numbers when it is made, which is before any step
empty = functools.partial(torch.empty, device="cuda")


class OneDevice(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        devices = {leaf.device.type for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, Tensor)}
        assert len(devices) < 2, f"{func} copies from one of {devices} to the other"
        return found


class Launched:
    """Stands in for a kernel, and notes that it was launched."""

    def __init__(self, name: str, into: list[tuple[str, int]]) -> None:
        self._name, self._into = name, into

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *_, **__: self._into.append((self._name, math.prod(grid)))


def cache() -> Tensor:
    return empty(NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, 2 * HEAD_DIM, dtype=torch.bfloat16).transpose(1, 2)


def integers(*shape: int) -> Tensor:
    return empty(*shape, dtype=torch.int32)


def attended(
    max_query_len: int, requests: int = REQUESTS, length: int = LENGTH
) -> tuple[Tensor, Tensor, Tensor, PagedBatch]:
    """Queries, keys, values and where they lie, of prompts or of lone queries."""
    tokens = requests * max_query_len
    batch = PagedBatch(
        integers(requests, length // BLOCK_SIZE), integers(requests + 1), integers(requests), max_query_len, length
    )
    keys, values = cache().split(HEAD_DIM, dim=-1)
    return empty(tokens, HEADS, HEAD_DIM, dtype=torch.bfloat16), keys, values, batch


def biased(max_query_len: int, is_windowed: bool, requests: int = REQUESTS, length: int = LENGTH) -> None:
    query, keys, values, batch = attended(max_query_len, requests, length)
    counts = empty(2, dtype=torch.int64)
    window = (
        Window(zero_norms((NUM_BLOCKS, KV_HEADS, BLOCK_SIZE), counts.device), 1e-3, counts) if is_windowed else None
    )
    form = copy.copy(FORM)
    object.__setattr__(form, "slope", empty(HEADS))
    ops.bias_attention(query, keys, values, batch, form, HEAD_DIM**-0.5, torch.empty_like(query), window)


def contextual(max_query_len: int, requests: int = REQUESTS, length: int = LENGTH) -> None:
    query, keys, values, batch = attended(max_query_len, requests, length)
    cope = Cope(empty(HEAD_DIM, 64, dtype=torch.bfloat16), 1.0)
    counts = empty(2, dtype=torch.int64)
    ops.cope_attention(query, keys, values, batch, cope, HEAD_DIM**-0.5, torch.empty_like(query), counts)


def norms() -> None:
    key = empty(REQUESTS, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16)
    ops.record_key_norms(
        zero_norms((NUM_BLOCKS, KV_HEADS, BLOCK_SIZE), key.device), key, empty(REQUESTS, dtype=torch.int64)
    )


def rows() -> None:
    of_tokens = empty(REQUESTS, dtype=torch.int64)
    ops.rope_rows(of_tokens, of_tokens, empty(NUM_BLOCKS, dtype=torch.int64), BLOCK_SIZE, torch.empty_like(of_tokens))


def rotated() -> None:
    of_tokens, one = empty(REQUESTS, dtype=torch.int64), empty(())
    phases, factors = empty(2, HEAD_DIM // 2, dtype=torch.int64), empty(2)
    scales = RotaryScales(phases, factors, empty(NUM_BLOCKS, dtype=torch.int64), BLOCK_SIZE, True)
    query, key, value = (
        empty(REQUESTS, heads, HEAD_DIM, dtype=torch.bfloat16) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    out = torch.empty_like(query)
    ops.rotary_store(RotaryStep(query, key, value, cache(), of_tokens, of_tokens, scales, one, one, out))


STEPS: dict[str, Callable[[], None]] = {
    "rows of the table": rows,
    "rotation into the cache": rotated,
    "key norms": norms,
    "bias, lone queries": lambda: biased(1, is_windowed=False),
    "bias, lone queries, windowed": lambda: biased(1, is_windowed=True),
    "bias, prompts, windowed": lambda: biased(300, is_windowed=True),
    "contextual positions, lone queries": lambda: contextual(1),
    "contextual positions, lone queries of very many keys": lambda: contextual(1, 3, 2**20),
    "bias, a graph of many lone queries": lambda: biased(1, False, *MANY),
    "bias, a graph of many lone queries, windowed": lambda: biased(1, True, *MANY),
    "contextual positions, a graph of many lone queries": lambda: contextual(1, *MANY),
    "contextual positions, prompts": lambda: contextual(300),
    "contextual positions, a prompt": lambda: contextual(8192, 1, 8192),
}


def launched() -> Iterator[tuple[str, list[tuple[str, int]]]]:
    for name, step in STEPS.items():
        into: list[tuple[str, int]] = []
        for kernel, (module, attribute) in ALL.items():
            setattr(module, attribute, Launched(kernel, into))
        with FakeTensorMode(), OneDevice():
            step()
        yield name, into


if __name__ == "__main__":
    print(json.dumps(dict(launched())))
