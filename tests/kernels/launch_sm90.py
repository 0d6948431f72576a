"""Stand-ins for Triton kernels, which compile for an H100 what would have been launched, and what it is made of."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import pathlib
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.backends.nvidia
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.benchmarks.gpu.compiled import Compiled

_BIN = pathlib.Path(triton.backends.nvidia.__file__).with_name("bin")
_INSTRUCTION = r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]+)"  # address, predicate, opcode
_EXECUTABLE = 4  # of a section's flags in ELF
_TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclasses.dataclass(frozen=True)
class MachineCode:
    """
    Attributes:
        instructions: alone.
        programs: that a multiprocessor has room for.
        products: of matrices by a group of warps, that the compiler asked the assembler for.
    """

    instructions: bytes
    programs: int
    products: int


class Launch:
    """Stands in for a kernel, and keeps what it would have been launched with."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.arguments: dict[str, Any] = {}
        self.num_warps = 4  # Triton's default
        self.maxnreg: int | None = None

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._launch

    def _launch(self, *positional: Any, num_warps: int = 4, maxnreg: int | None = None, **named: Any) -> None:
        self.arguments = dict(zip(self.kernel.arg_names, positional, strict=False)) | named
        self.num_warps, self.maxnreg = num_warps, maxnreg

    def machine_code(self) -> MachineCode:
        compiled = self._compiled()
        cubin = compiled.asm["cubin"]
        used = Compiled(compiled.name, _registers(cubin), 0, self.num_warps, compiled.metadata.shared)
        return MachineCode(_instructions(cubin), used.programs, compiled.asm["ptx"].count("wgmma.mma_async"))

    def shared_bytes(self) -> int:
        """Of a program; known before it is assembled, which takes long."""
        triton.knobs.runtime.add_stages_inspection_hook = _without_assembly
        try:
            return int(self._compiled().metadata.shared)
        finally:
            triton.knobs.runtime.add_stages_inspection_hook = None

    def _compiled(self) -> Any:
        source = self._specialised()
        options = {"num_warps": self.num_warps, "maxnreg": self.maxnreg}
        return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)

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
            is_aligned = type(value) is Tensor and not parameter.do_not_specialize_on_alignment
            if is_aligned or (is_specialised and value % 16 == 0):
                hints[(index,)] = [["tt.divisibility", 16]]
        return ASTSource(self.kernel, types, constants, hints)


def opcodes(machine_codes: Mapping[str, MachineCode]) -> dict[str, dict[str, int]]:
    """How often each opcode stands in each machine code, with its modifiers.

    They are listed as one, because the disassembler takes longer to start than to list any of them.
    """
    counts: dict[str, dict[str, int]] = {name: collections.Counter() for name in machine_codes}
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(code.instructions for code in machine_codes.values()))
        file.flush()
        command = [_BIN / "nvdisasm", "--binary", "SM90a", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = list(machine_codes)
    ends = list(itertools.accumulate(len(code.instructions) for code in machine_codes.values()))
    for address, opcode in re.findall(_INSTRUCTION, listing, re.MULTILINE):
        counts[names[bisect.bisect(ends, int(address, 16))]][opcode] += 1
    return counts


def _registers(cubin: bytes) -> int:
    """Of a thread."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(cubin)
        file.flush()
        command = [_BIN / "cuobjdump", "--dump-resource-usage", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [registers] = re.findall(r"\bREG:(\d+)", listing)
    return int(registers)


def _instructions(cubin: bytes) -> bytes:
    """The executable section of an ELF file; a kernel has one."""
    (headers,) = struct.unpack_from("<Q", cubin, 40)
    size, number = struct.unpack_from("<HH", cubin, 58)
    sections = (struct.unpack_from("<IIQQQQ", cubin, headers + index * size) for index in range(number))
    [code] = [cubin[begin : begin + length] for _, _, flags, _, begin, length in sections if flags & _EXECUTABLE]
    return code


def _without_assembly(*pipeline: Any) -> tuple[str, str] | None:
    """A hook of Triton's, which asks first for what tells its programs from others in the cache."""
    if not pipeline:
        return "without assembly", "without assembly"
    _, stages, *_ = pipeline
    stages["ptx"] = _named
    stages["cubin"] = lambda *_: b""
    return None


def _named(_: object, metadata: dict[str, Any]) -> str:
    """What Triton reads off the assembler's input."""
    metadata["name"] = "not assembled"
    return ""
