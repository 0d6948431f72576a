"""Compile the Triton kernels for an H100 as they would be launched, without one, and print their opcodes as JSON."""

from __future__ import annotations

import collections
import json
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.backends.nvidia
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from posenc_runtime.kernels import rerotate, rope_rows
from posenc_runtime.kernels.rerotation import BlockMoves, KeyLayout, ScaleChange

_BIN = pathlib.Path(triton.backends.nvidia.__file__).with_name("bin")
_INSTRUCTION = r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]+)"  # address, predicate, opcode


class Launch:
    """Stands in for a kernel, and keeps what it would have been launched with."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.arguments: dict[str, Any] = {}
        self.num_warps = 4  # Triton's default

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._launch

    def _launch(self, *positional: Any, num_warps: int = 4, **named: Any) -> None:
        self.arguments = dict(zip(self.kernel.arg_names, positional, strict=False)) | named
        self.num_warps = num_warps

    def opcodes(self) -> dict[str, int]:
        """How often each opcode stands in the machine code, with its modifiers."""
        source = self._specialised()
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": self.num_warps})
        with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
            cubin.write(compiled.asm["cubin"])
            cubin.flush()
            listing = subprocess.run(
                [_BIN / "cuobjdump", "--dump-sass", cubin.name], capture_output=True, text=True, check=True
            ).stdout
        return collections.Counter(re.findall(_INSTRUCTION, listing, re.MULTILINE))

    def _specialised(self) -> ASTSource:
        """As Triton specialises at a launch: on a one, and on what sixteen divides."""
        types, constants, hints = {}, {}, {}
        for index, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            is_specialised = type(value) is int and not parameter.do_not_specialize
            if parameter.is_constexpr or (is_specialised and value == 1):
                types[parameter.name], constants[(index,)] = "constexpr", value
                continue
            types[parameter.name] = {Tensor: "*i64", float: "fp32", int: "i32"}[type(value)]
            if type(value) is Tensor or (is_specialised and value % 16 == 0):
                hints[(index,)] = [["tt.divisibility", 16]]
        return ASTSource(self.kernel, types, constants, hints)


def rerotation(
    head_dim: int,
    rotary_dim: int,
    is_neox_style: bool,
    num_heads: int = 8,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, int]:
    launch = Launch(_REROTATE)
    rerotate._rerotate_kernel = launch
    layout = KeyLayout(block_size, head_dim, rotary_dim, is_neox_style)
    cache = torch.empty(1, block_size, num_heads, 2 * head_dim, dtype=dtype).transpose(1, 2)
    block = torch.zeros(1, dtype=torch.int64)
    phases = torch.ones(rotary_dim // 2, dtype=torch.int64)
    rerotate.rerotate([cache], BlockMoves(block, block, block), ScaleChange(phases), layout)
    return launch.opcodes()


def row_lookup() -> dict[str, int]:
    launch = Launch(rope_rows._rope_rows_kernel)
    rope_rows._rope_rows_kernel = launch
    some = torch.zeros(256, dtype=torch.int64)
    rope_rows.rope_rows(some, some, some, 16)
    return launch.opcodes()


_REROTATE = rerotate._rerotate_kernel

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
    "rope-rows": row_lookup,
}

if __name__ == "__main__":
    print(json.dumps({name: opcodes() for name, opcodes in COMPILED.items()}))
