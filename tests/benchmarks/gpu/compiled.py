"""What the compiler made of the kernels that ran: registers, spills, shared memory, and how many programs fit."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

# A multiprocessor of compute capability 9.0: CUDA C++ Programming Guide, table of technical specifications. Registers
# are given out to a warp in units of 256, and each program takes 1 KiB of shared memory besides its own.
_REGISTERS, _REGISTER_UNIT = 64 * 1024, 256
_SHARED_BYTES, _RESERVED_BYTES = 228 * 1024, 1024
_WARPS, _PROGRAMS = 64, 32
_PACKAGE = "posenc_runtime.kernels."


@dataclasses.dataclass(frozen=True)
class Compiled:
    """
    Attributes:
        registers: of a thread.
        spills: registers of a thread that are kept in local memory.
        shared_bytes: of a program.
    """

    name: str
    registers: int
    spills: int
    num_warps: int
    shared_bytes: int

    @property
    def programs(self) -> int:
        """That a multiprocessor holds at once."""
        a_warp = -(-self.registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        by_registers = _REGISTERS // (max(a_warp, 1) * self.num_warps)
        by_memory = _SHARED_BYTES // (self.shared_bytes + _RESERVED_BYTES)
        return min(by_registers, by_memory, _WARPS // self.num_warps, _PROGRAMS)

    @property
    def occupancy(self) -> float:
        """Warps that a multiprocessor holds at once, of those that it could."""
        return self.programs * self.num_warps / _WARPS

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.registers} registers, {self.spills} spilled, {self.num_warps} warps, "
            f"{self.shared_bytes / 1024:.1f} KiB shared, occupancy {self.occupancy:.0%}"
        )


class _Noted:
    """Stands in for a kernel while it is launched, and keeps what was compiled for the launch."""

    def __init__(self, kernel: Any, found: dict[Any, Compiled]) -> None:
        self._kernel, self._found = kernel, found

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*arguments: Any, **named: Any) -> Any:
            handle = self._kernel[grid](*arguments, **named)
            # A Triton that names these otherwise must not cost anybody the measurement.
            with contextlib.suppress(AttributeError, TypeError):
                about = handle.metadata
                self._found[id(handle)] = Compiled(
                    str(about.name), int(handle.n_regs), int(handle.n_spills), int(about.num_warps), int(about.shared)
                )
            return handle

        return launch


@contextlib.contextmanager
def noted() -> Iterator[dict[Any, Compiled]]:
    """Collect what our kernels that are launched meanwhile were compiled to, each once, in order.

    Raises:
        ImportError: when there is no Triton.
    """
    from triton.runtime import JITFunction

    found: dict[Any, Compiled] = {}
    kernels = [
        (module, name, kernel)
        for module in _kernel_modules()
        for name, kernel in vars(module).items()
        if isinstance(kernel, JITFunction) and name.endswith("_kernel")
    ]
    for module, name, kernel in kernels:
        setattr(module, name, _Noted(kernel, found))
    try:
        yield found
    finally:
        for module, name, kernel in kernels:
            setattr(module, name, kernel)


def _kernel_modules() -> list[Any]:
    """All of ours that hold kernels; importing those that launch them brings the others."""
    import posenc_runtime.kernels.attention.bias_attention
    import posenc_runtime.kernels.attention.cope_attention
    import posenc_runtime.kernels.attention.key_norms
    import posenc_runtime.kernels.attention.read_time_attention
    import posenc_runtime.kernels.rotary.rerotate
    import posenc_runtime.kernels.rotary.rotary_store  # noqa: F401

    return [module for name, module in sorted(sys.modules.items()) if name.startswith(_PACKAGE)]
