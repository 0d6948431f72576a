"""A multiprocessor that carries out PTX, in C++: built where it is first needed, and driven from here."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from tests.kernels.ptx.driver import Launch
from tests.kernels.ptx.registers import bits_of
from tests.kernels.ptx.translation import Translation

_SOURCES = pathlib.Path(__file__).with_name("machine")
_FLAGS = ("-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fPIC")


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("registers", ctypes.c_void_p),
        ("guard", ctypes.c_int32),
        ("negated", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("target", ctypes.c_int32),
        ("immediates", ctypes.c_int64 * 4),
    )


class _Number(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_int32), ("size", ctypes.c_int32), ("value", ctypes.c_uint64))


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What differs from run to run on a device, and must not show.

    Attributes:
        seed: of the order of warps between barriers, and of how wrong approximate instructions are; 0: they are exact.
        program_order: ascending, descending or random.
        poison: a byte; shared memory and registers that nobody wrote are full of it. 255 makes numbers NaN.
    """

    seed: int = 0
    program_order: int = 0
    poison: int = 0xFF


class Machine:
    """Runs launches one after the other, and remembers what was wrong with how they used memory."""

    def __init__(self, conditions: Conditions = Conditions()) -> None:
        self.faults: list[str] = []
        self.beside: list[Tensor] = []  # memory whose addresses launches are given in a tensor
        self._conditions = conditions

    def execute(self, launch: Launch) -> None:
        """Run all programs of a launch, in the memory of the tensors that it was given.

        Raises:
            RuntimeError: when a program leaves that memory, which ends the launch.
        """
        code = _Code.of(launch.ptx)
        scratch = torch.zeros(max(1, launch.scratch_bytes * launch.num_programs), dtype=torch.uint8)
        values = [_value(kind, given) for kind, given in zip(launch.types, launch.arguments, strict=True)]
        values += [scratch.data_ptr(), 0]  # and none for a profiler
        tensors = [given for given in launch.arguments if isinstance(given, Tensor)]
        memory = {
            (storage.data_ptr(), storage.nbytes())
            for tensor in (*tensors, *self.beside, scratch)
            if (storage := tensor.untyped_storage())
        }
        found = code.run(launch, values, sorted(memory), self._conditions)
        for fault in found:
            if fault not in self.faults:
                self.faults.append(fault)
        if any("out of bounds" in fault for fault in found):
            raise RuntimeError("; ".join(found))


class _Code:
    """A kernel as the machine takes it."""

    def __init__(self, ptx: str) -> None:
        translation = Translation(ptx)
        self._registers, self._parameters = translation.registers, translation.parameters
        self._sources = sorted({instruction.source for instruction in translation.program})
        self._kept: list[Any] = []
        library = _library()
        unknown = set()
        self._program = (_Instruction * len(translation.program))()
        for into, said in zip(self._program, translation.program, strict=True):
            handler = None if said.handler is None else library.find_handler(said.handler.encode())
            if said.handler is not None and not handler:
                unknown.add(said.handler)
            places = (ctypes.c_int32 * max(len(said.places), 1))(*said.places)
            self._kept.append(places)
            into.handler, into.registers = handler, ctypes.addressof(places)
            into.guard, into.negated, into.target = said.guard, said.is_negated, said.target
            into.line = self._sources.index(said.source)
            into.immediates[: len(said.numbers)] = said.numbers
        if unknown:
            raise NotImplementedError(f"instructions must be known to the machine, got {', '.join(sorted(unknown))}")

    @staticmethod
    @functools.cache
    def of(ptx: str) -> _Code:
        return _Code(ptx)

    def run(
        self, launch: Launch, values: Sequence[int], memory: Sequence[tuple[int, int]], conditions: Conditions
    ) -> list[str]:
        """What was wrong, in words: the kernel, the rule and the line of the source."""
        numbers = [(offset, size, value) for (value, size), offset in self._registers.constants.items()]
        for (offset, size), value in zip(self._parameters, values, strict=True):
            numbers.append((offset, size, value & ((1 << 8 * size) - 1)))
        flat = [number for allocation in memory for number in allocation]
        answer: bytes = _library().run_launch(
            self._program,
            self._registers.size,
            (_Number * len(numbers))(*(_Number(*number) for number in numbers)),
            len(numbers),
            (ctypes.c_int32 * 8)(*self._registers.special),
            (ctypes.c_int32 * 3)(*launch.grid),
            launch.num_warps,
            launch.shared_bytes,
            (ctypes.c_uint64 * len(flat))(*flat),
            len(memory),
            ctypes.c_uint64(conditions.seed),
            conditions.program_order,
            conditions.poison,
        )
        faults = (fault.split(" @", 1) for fault in answer.decode().splitlines())
        return [f"{launch.name}: {rule} at {self._sources[int(line)]}" for rule, line in faults]


def _value(kind: str, given: Any) -> int:
    if hasattr(given, "data_ptr"):
        return int(given.data_ptr())
    return bits_of(given) if kind == "fp32" else int(given)


@functools.cache
def _library() -> Any:
    with tempfile.TemporaryDirectory() as folder:

        def compiled(source: pathlib.Path) -> str:
            target = f"{folder}/{source.stem}.o"
            subprocess.run(["g++", *_FLAGS, "-c", str(source), "-o", target], check=True)
            return target

        with ThreadPoolExecutor(2) as threads:
            objects = list(threads.map(compiled, sorted(_SOURCES.glob("*.cpp"))))
        library = f"{folder}/machine.so"
        subprocess.run(["g++", "-shared", *objects, "-o", library], check=True)
        found = ctypes.CDLL(library)
    found.find_handler.restype, found.find_handler.argtypes = ctypes.c_void_p, (ctypes.c_char_p,)
    found.run_launch.restype = ctypes.c_char_p
    return found
