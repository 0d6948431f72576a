"""A driver for Triton that has no device: kernels are compiled as for one, and their launches handed to a function.

Everything before the launch is Triton's own: binding of arguments, specialisation, and the compiler up to PTX. PTX
stands in the place of the machine code that the assembler would make of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver as active_driver

SHARED_BYTES = 227 * 1024  # that an H100 gives a program
MULTIPROCESSORS = 132


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel's launch.

    Attributes:
        scratch_bytes: of global memory, that the compiler takes for each program.
        types, arguments: of what is not compiled in, in order. Types are Triton's: ``*bf16``, ``i32``, ``fp32``.
    """

    name: str
    ptx: str
    grid: tuple[int, int, int]
    num_warps: int
    shared_bytes: int
    scratch_bytes: int
    types: tuple[str, ...]
    arguments: tuple[Any, ...]

    @property
    def num_programs(self) -> int:
        return math.prod(self.grid)


class Driver:
    """What Triton asks of a driver."""

    def __init__(self, capability: int, execute: Callable[[Launch], None]) -> None:
        self._target = GPUTarget("cuda", capability, 32)
        self._execute = execute
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES, "multiprocessor_count": MULTIPROCESSORS}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[None, str, int, int, int]:
        """Module, function, registers, spills and the most threads; the function is PTX."""
        return None, binary.decode(), 0, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """What is called at each launch of one compiled kernel."""
        kinds = source.signature.values()

        def launch(x: int, y: int, z: int, stream: int, ptx: str, packed: Any, *rest: Any) -> None:
            _, _, _, *values = rest  # what Triton's own launcher tells its listeners
            kept = [(kind, value) for kind, value in zip(kinds, values, strict=True) if kind != "constexpr"]
            types, arguments = zip(*kept, strict=True) if kept else ((), ())
            sizes = metadata.num_warps, metadata.shared, metadata.global_scratch_size
            self._execute(Launch(metadata.name, ptx, (x, y, z), *sizes, types, arguments))

        return launch


@contextlib.contextmanager
def launches_go_to(execute: Callable[[Launch], None], capability: int) -> Iterator[None]:
    """Within it Triton compiles for a device of that capability, and calls ``execute`` in the place of launching."""
    active_driver.set_active(Driver(capability, execute))
    triton.knobs.runtime.add_stages_inspection_hook = _without_assembly
    try:
        yield
    finally:
        triton.knobs.runtime.add_stages_inspection_hook = None
        active_driver._active = None


def _without_assembly(*pipeline: Any) -> tuple[str, str] | None:
    """A hook of Triton's, which asks first for what tells its programs from others in the cache."""
    if not pipeline:
        return "ptx alone", "ptx alone"
    _, stages, *_ = pipeline
    stages["cubin"] = lambda ptx, _: ptx.encode()
    return None
