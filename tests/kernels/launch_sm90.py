"""Stand-ins for Triton kernels, which compile for an H100 what would have been launched."""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import triton
import triton.backends.nvidia
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_BIN = pathlib.Path(triton.backends.nvidia.__file__).with_name("bin")
_INSTRUCTION = r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]+)"  # address, predicate, opcode


_DISASSEMBLERS = ThreadPoolExecutor(1)
_SHARED_MEMORY = 227 * 1024  # bytes, of an H100's multiprocessor for one program
_TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int32: "i32",
    torch.int64: "i64",
}


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

    def opcodes(self) -> Future[dict[str, int]]:
        """How often each opcode stands in the machine code, with its modifiers. Listed while others are compiled."""
        source = self._specialised()
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": self.num_warps})
        assert compiled.metadata.shared <= _SHARED_MEMORY, f"{self.kernel} asks for {compiled.metadata.shared} bytes"
        return _DISASSEMBLERS.submit(_listed, compiled.asm["cubin"])

    def _specialised(self) -> ASTSource:
        """As Triton specialises at a launch: on a one, and on what sixteen divides."""
        types, constants, hints = {}, {}, {}
        for index, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            is_specialised = type(value) is int and not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or (is_specialised and value == 1):
                types[parameter.name], constants[(index,)] = "constexpr", value
                continue
            if type(value) is Tensor:
                types[parameter.name] = f"*{_TYPES[value.dtype]}"
            else:
                types[parameter.name] = {float: "fp32", int: "i32"}[type(value)]
            if type(value) is Tensor or (is_specialised and value % 16 == 0):
                hints[(index,)] = [["tt.divisibility", 16]]
        return ASTSource(self.kernel, types, constants, hints)


def _listed(machine_code: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(machine_code)
        cubin.flush()
        listing = subprocess.run(
            [_BIN / "cuobjdump", "--dump-sass", cubin.name], capture_output=True, text=True, check=True
        ).stdout
    return collections.Counter(re.findall(_INSTRUCTION, listing, re.MULTILINE))
