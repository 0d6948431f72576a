"""The Triton kernels of attention, compiled for an H100 as they would be launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import BiasForm, Flat, Linear, Log, Power, Table
from posenc_runtime.encodings.read_time.rerope import ReRope
from posenc_runtime.kernels.attention import (
    bias_decode,
    bias_prefill,
    chunks,
    cope_decode,
    cope_prefill,
    cope_scores,
    key_norms,
    read_time_decode,
    read_time_prefill,
    window_plan,
)
from posenc_runtime.kernels.attention.bias_attention import bias_attention
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.cope_attention import cope_attention
from posenc_runtime.kernels.attention.key_norms import record_key_norms
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time import PLAIN, LayerLogits, ReadTime
from posenc_runtime.kernels.attention.read_time_attention import read_time_attention
from posenc_runtime.kernels.attention.window import Window, zero_norms
from tests.kernels.launch_sm90 import Launch, MachineCode

KERNELS = {
    "plan": (window_plan, "_plan_kernel"),
    "prefill": (bias_prefill, "_prefill_kernel"),
    "decode": (bias_decode, "_decode_kernel"),
    "merge": (chunks, "_merge_kernel"),
    "cope-prefill": (cope_prefill, "_prefill_kernel"),
    "cope-scores": (cope_scores, "_score_kernel"),
    "cope-values": (cope_decode, "_value_kernel"),
    "read-time-decode": (read_time_decode, "_decode_kernel"),
    "read-time-turn": (read_time_prefill, "_turn_kernel"),
    "read-time-prefill": (read_time_prefill, "_prefill_kernel"),
    "norms": (key_norms, "_store_norms_kernel"),
    "maxima": (key_norms, "_running_maximum_kernel"),
}
REQUESTS, LENGTH, BLOCK_SIZE = 4, 4096, 16


def biased(
    form: BiasForm,
    num_kv_heads: int,
    head_dim: int,
    window: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    num_requests: int = REQUESTS,
) -> None:
    query, keys, values = tensors(32, num_kv_heads, head_dim, dtype, num_requests)
    keep = Window(norms(num_kv_heads), 1e-3, torch.zeros(2, dtype=torch.int64)) if window else None
    bias_attention(query, keys, values, batch(num_requests), form, head_dim**-0.5, torch.empty_like(query), keep)


def contextual(npos: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> None:
    query, keys, values = tensors(32, num_kv_heads, head_dim, dtype)
    cope, counts = Cope(torch.zeros(head_dim, npos, dtype=dtype), 1.0), torch.zeros(2, dtype=torch.int64)
    cope_attention(query, keys, values, batch(), cope, head_dim**-0.5, torch.empty_like(query), counts)


def contextual_without_room() -> None:
    """The last launch of each kernel is that for requests whose scores have no room."""
    room, cope_decode.SCORES = cope_decode.SCORES, 0
    contextual(64, 8, 128)
    cope_decode.SCORES = room


def at_read_time(
    num_kv_heads: int = 8,
    head_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    *,
    cache: torch.dtype | None = None,
    logits: LayerLogits = PLAIN,
    leak: float | Literal["none"] = "none",
    is_neox_style: bool = True,
) -> None:
    query, keys, values = tensors(32, num_kv_heads, head_dim, dtype)
    if cache is not None:
        keys, values = keys.to(cache), values.to(cache)
    pages = ReRope(leak=leak).pages(LENGTH // 2, BLOCK_SIZE)
    read_time = ReadTime.of(pages, torch.ones(head_dim // 2), is_neox_style=is_neox_style)
    given = (query, keys, values, batch(), read_time, head_dim**-0.5, torch.empty_like(query), logits)
    read_time_attention(*given, only_far=True)  # as engines launch it


def recorded() -> None:
    _, keys, _ = tensors(32, 8, 128, torch.bfloat16)
    record_key_norms(norms(8), keys.transpose(1, 2)[0], torch.zeros(BLOCK_SIZE, dtype=torch.int64))


def norms(num_kv_heads: int) -> Tensor:
    return zero_norms((1, num_kv_heads, BLOCK_SIZE), torch.device("cpu"))


def tensors(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, num_requests: int = REQUESTS
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and both halves of a cache that holds keys beside values, as vLLM's does."""
    cache = torch.empty(1, BLOCK_SIZE, num_kv_heads, 2 * head_dim, dtype=dtype).transpose(1, 2)
    query = torch.empty(num_requests + 2, num_heads, head_dim, dtype=dtype)
    return query, cache[..., :head_dim], cache[..., head_dim:]


def batch(num_requests: int = REQUESTS) -> PagedBatch:
    """Prompts and lone queries, for all that a launch knows."""
    table = torch.zeros(num_requests, LENGTH // BLOCK_SIZE, dtype=torch.int32)
    zeros = torch.zeros(num_requests + 1, dtype=torch.int32)
    return PagedBatch(table, zeros, zeros[:num_requests], 3, LENGTH)


HEADS = torch.ones(32)
IN_8_BITS = LayerLogits(k_scale=HEADS[:1], v_scale=HEADS[:1])
READ_TIME = ("read-time-decode", "read-time-turn", "read-time-prefill")
LAUNCHED: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "alibi-32-to-8-by-128-windowed": (
        lambda: biased(Linear(HEADS), 8, 128, window=True),
        ("plan", "prefill", "decode"),
    ),
    # With so many requests fewer warps of more registers plan each.
    "alibi-of-many-windowed": (lambda: biased(Linear(HEADS), 8, 128, window=True, num_requests=256), ("plan",)),
    "alibi-by-64": (lambda: biased(Linear(HEADS), 32, 64), ("prefill",)),
    "alibi-by-128": (lambda: biased(Linear(HEADS), 32, 128), ("decode",)),
    "flat-by-128": (lambda: biased(Flat(32), 32, 128), ("decode", "merge")),
    "power-by-80": (lambda: biased(Power(HEADS, HEADS), 32, 80, window=True), ("plan", "decode")),
    "log": (lambda: biased(Log(HEADS, HEADS), 8, 128, window=True), ("decode",)),
    "table": (lambda: biased(Table(torch.zeros(32, 129)), 8, 128), ("decode",)),
    "float32": (lambda: biased(Flat(32), 8, 128, dtype=torch.float32), ("decode",)),
    "cope-64": (lambda: contextual(64, 8, 128), ("cope-prefill", "cope-scores", "cope-values")),
    "cope-without-room": (contextual_without_room, ("cope-values",)),
    "read-time": (at_read_time, READ_TIME),
    "read-time-leaky": (lambda: at_read_time(leak=8), READ_TIME),
    "read-time-gptj": (lambda: at_read_time(is_neox_style=False), READ_TIME),
    "read-time-by-64": (lambda: at_read_time(head_dim=64), READ_TIME),
    "read-time-by-256": (lambda: at_read_time(head_dim=256), READ_TIME),
    # Queries are turned as for any cache.
    "read-time-float8": (
        lambda: at_read_time(cache=torch.float8_e4m3fn, logits=IN_8_BITS),
        ("read-time-decode", "read-time-prefill"),
    ),
    "key-norms": (recorded, ("norms", "maxima")),
}


def machine_codes() -> dict[str, MachineCode]:
    """Of each kernel of each launch."""
    return {
        f"{name} {kernel}": code
        for name, (launched, names) in LAUNCHED.items()
        for kernel, code in compiled(launched, names).items()
    }


def compiled(launched: Callable[[], None], names: tuple[str, ...]) -> dict[str, MachineCode]:
    """The machine code of each kernel named, as it was launched."""
    launches = launches_of(launched)
    return {name: launches[name].machine_code() for name in names}


def launches_of(launched: Callable[[], None]) -> dict[str, Launch]:
    """What was launched of each kernel."""
    launches = {name: Launch(getattr(module, attribute)) for name, (module, attribute) in KERNELS.items()}
    for name, (module, attribute) in KERNELS.items():
        setattr(module, attribute, launches[name])
    launched()
    for name, (module, attribute) in KERNELS.items():
        setattr(module, attribute, launches[name].kernel)
    return launches
