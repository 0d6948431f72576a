"""Counts of bytes, targets, and what is told of a kernel that misses one."""

from __future__ import annotations

import types
from typing import Any

import pytest

from tests.benchmarks.gpu import compiled, device, report
from tests.benchmarks.gpu.compiled import Compiled
from tests.benchmarks.gpu.rows import Row, at_least, at_most
from tests.benchmarks.gpu.sizes import FULL
from tests.benchmarks.intervals import Estimate

KERNEL = Compiled("_rotary_store_kernel", registers=64, spills=0, num_warps=4, shared_bytes=2048)
SAID_BY_NVIDIA_SMI = "580.159.04, 143771, 345, 3201, 31, 77.15\n"


def test_bytes_are_those_counted_by_hand() -> None:
    model = FULL.model
    assert model.rotary_store_bytes(1) == 24_592
    assert model.rotation_then_store_bytes(1) == 28_944
    assert model.rerotated_bytes(1) == 131_072
    assert model.rerotated_bytes(1, num_pairs=48) == 98_304
    assert model.copied_bytes(1) == 262_144
    assert model.decoded_bytes(8192, 8) == 8 * (8192 * 4096 + 2 * 8192)
    assert model.as_multi_head().cache_bytes(131_072) == 2**31


def test_a_target_is_reached_at_its_bound_and_never_by_what_is_no_number() -> None:
    assert at_least(0.8).is_reached(0.8) and not at_least(0.8).is_reached(0.79)
    assert at_most(5.3).is_reached(5.3) and not at_most(5.3).is_reached(5.31)
    assert not at_least(0).is_reached(float("nan")) and not at_most(9).is_reached(float("nan"))


def test_a_missed_target_is_told_with_what_the_compiler_made() -> None:
    row = Row("rotary_store", "share of copy bandwidth", at_least(0.8)).measured(
        Estimate(0.7, 0.69, 0.71), seconds=(50e-6,), moved=150_000_000, kernels=(KERNEL,)
    )
    assert row.is_reached is False
    assert report.missed_target(row) == (
        "rotary_store: 0.70 (0.69 to 0.71) share of copy bandwidth, at least 0.8; 50.0 µs a call; 3.00 TB/s; "
        "_rotary_store_kernel: 64 registers, 0 spilled, 4 warps, 2.0 KiB shared, occupancy 50%"
    )


@pytest.mark.parametrize(
    ("registers", "num_warps", "shared_bytes", "programs"),
    [
        (32, 4, 0, 16),  # all 64 warps
        (64, 4, 0, 8),  # 65,536 registers
        (255, 8, 0, 1),
        (40, 1, 0, 32),  # programs
        (40, 4, 100 * 1024, 2),  # shared memory
        (40, 4, 113 * 1024, 2),
        (40, 4, 114 * 1024, 1),
    ],
)
def test_as_many_programs_fit_as_the_scarcest_resource_allows(
    registers: int, num_warps: int, shared_bytes: int, programs: int
) -> None:
    assert Compiled("kernel", registers, 0, num_warps, shared_bytes).programs == programs


def test_what_a_launch_was_compiled_to_is_noted_once_and_the_kernel_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = types.SimpleNamespace(name="_rope_rows_kernel", num_warps=4, shared=16)
    handle = types.SimpleNamespace(metadata=about, n_regs=30, n_spills=0)

    class Kernel:
        def __getitem__(self, grid: object) -> Any:
            return lambda *arguments, **named: handle

    module = types.SimpleNamespace(_some_kernel=(kernel := Kernel()), launched=Kernel())
    monkeypatch.setattr(compiled, "_kernel_modules", lambda: [module])
    monkeypatch.setattr("triton.runtime.JITFunction", Kernel)
    with compiled.noted() as found:
        for _ in range(2):
            assert module._some_kernel[(1,)](1, BLOCK=2) is handle
    assert list(found.values()) == [Compiled("_rope_rows_kernel", 30, 0, 4, 16)]
    assert module._some_kernel is kernel


def test_all_kernels_are_found_that_are_launched() -> None:
    from triton.runtime import JITFunction

    found = {
        name
        for module in compiled._kernel_modules()
        for name, held in vars(module).items()
        if isinstance(held, JITFunction)
    }
    assert {"_rotary_store_kernel", "_rerotate_kernel", "_decode_kernel", "_prefill_kernel", "_plan_kernel"} <= found
    assert {"_merge_kernel", "_score_kernel", "_value_kernel"} <= found


def test_what_nvidia_smi_says_gets_its_units() -> None:
    assert device.read(SAID_BY_NVIDIA_SMI) == {
        "driver": "580.159.04",
        "GPU memory": "143771 MiB of GPU memory",
        "SM clock": "345 MHz",
        "memory clock": "3201 MHz",
        "temperature": "31 °C",
        "power": "77.15 W",
    }
