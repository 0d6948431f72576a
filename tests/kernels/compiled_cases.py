"""What compiled kernels are run on: cases of the interpreter's that compile soon, and longer ones for whole tiles."""

from __future__ import annotations

import dataclasses

import torch

from tests.kernels import read_time_cases
from tests.kernels.attention_cases import BIAS_CASES, COPE_CASES, Case
from tests.kernels.rerotate_cases import CASES as TURNED
from tests.kernels.rotary_store_cases import CASES as STORED

_SHAPE = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "dtype": torch.bfloat16, "tokens_first": True}
_LONG = ((700, 1), (1, 1), (130, 130), (300, 40), (257, 1))

REROTATE = {
    name: TURNED[name]
    for name in (
        "neox",
        "gptj-bfloat16",
        "partial-blocks-of-more-than-a-tile",
        "layers-of-unlike-heads",
        "unaligned",
        "neox-latents",
        "gptj-latents",
        "neox-end-of-head-unchanged",
        "gptj-end-of-head",
        "neox-axes-interleaved",
        "gptj-axes-in-sections",
        "float8",
        "gptj-float8",
    )
}
ROTARY_STORE = {
    name: STORED[name] for name in ("neox-partial", "gptj-bfloat16", "float8", "gptj-float8-queries-partial")
}
ROPE_ROWS = {"a-program": 256, "a-program-and-a-token": 257}
BIAS = {name: BIAS_CASES[name] for name in ("bfloat16", "float16", "window-bfloat16")} | {
    "window-of-six-heads": Case(((90, 1), (70, 1)), num_heads=6, num_kv_heads=6, head_dim=128, tolerance=1e-3),
    "long-windowed": Case(_LONG, tolerance=1e-3, **_SHAPE),  # type: ignore[arg-type]
}
COPE = {"bfloat16": COPE_CASES["bfloat16"]} | {
    "long": Case(_LONG, bias="cope", npos=64, gates=-1.0, **_SHAPE),  # type: ignore[arg-type]
}
COPE_WITHOUT_ROOM = ("bfloat16", "long")

_READ_TIME = read_time_cases.Case(
    ((300, 1), (1, 1), (200, 130), (140, 1)),
    read_time_cases.rerope(128, 64, 64, leak=2),
    dtype=torch.bfloat16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    layout="tokens_first",
)
READ_TIME = {
    "bfloat16": _READ_TIME,
    "gptj-partial-sinks-and-cap": dataclasses.replace(
        _READ_TIME, is_neox_style=False, rotary_dim=32, sinks=True, soft_cap=20.0, dtype=torch.float16
    ),
    "e4m3-without-a-leak": dataclasses.replace(
        _READ_TIME, cache=torch.float8_e4m3fn, scales="head", method=read_time_cases.rerope(128, 64, 64)
    ),
}
