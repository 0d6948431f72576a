"""What the compiler makes of the Triton kernels for an H100, which needs no GPU."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import pytest

from tests.kernels.processes import output_of

Opcodes = dict[str, dict[str, int]]


def ptxas() -> pathlib.Path | None:
    """The assembler in the Triton wheel, found without an import of Triton."""
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        return None
    return pathlib.Path(triton.origin).parent / "backends/nvidia/bin/ptxas"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Opcodes]:
    assembler = ptxas()
    if assembler is None or not assembler.exists():
        pytest.skip("the Triton wheel brings no ptxas here")
    cache = str(tmp_path_factory.mktemp("triton"))
    found: dict[str, Opcodes] = json.loads(output_of("compile_sm90.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache))
    return found


@pytest.fixture
def moved(compiled: dict[str, Opcodes]) -> Opcodes:
    return compiled["moved"]


@pytest.fixture
def stored(compiled: dict[str, Opcodes]) -> Opcodes:
    return compiled["stored"]


@pytest.fixture
def attention(compiled: dict[str, Opcodes]) -> Opcodes:
    return compiled["attention"]


def test_no_kernel_spills_registers_or_takes_local_memory(moved: Opcodes, stored: Opcodes, attention: Opcodes) -> None:
    for name, counts in (moved | stored | attention).items():
        assert sum(counts.values()) > 50, f"{name}: no machine code was listed"
        assert counted(counts, "LDL") == counted(counts, "STL") == 0, name


def test_keys_and_values_are_read_and_written_sixteen_bytes_at_a_time(moved: Opcodes) -> None:
    for name, counts in moved.items():
        stores, wide_stores = counted(counts, "STG"), counted(counts, "STG", ".128")
        assert stores == wide_stores > 0, name
        # each stored element has been loaded; what is loaded besides are 64-bit block numbers, addresses, positions
        assert counted(counts, "LDG", ".128") >= wide_stores, name
        assert counted(counts, "LDG") == counted(counts, "LDG", ".128") + counted(counts, "LDG", ".64"), name


def test_rotation_into_the_cache_reads_and_writes_sixteen_bytes_at_a_time(stored: Opcodes) -> None:
    for name, counts in stored.items():
        # queries, keys and values once each; what is loaded besides are position, slot, scale, factor and phases
        assert counted(counts, "LDG", ".128") >= 6, name
        assert counted(counts, "LDG") - counted(counts, "LDG", ".128") <= 5 + 2 * name.startswith("float8"), name
        narrower = counted(counts, "STG") - counted(counts, "STG", ".128")
        if name.startswith("float8"):  # sixteen bytes of a half of a key become eight
            assert counted(counts, "STG", ".64") == narrower <= 2, name
        else:
            assert narrower == 0, name


def test_attention_reads_keys_and_values_sixteen_bytes_at_a_time_ahead_of_their_use(attention: Opcodes) -> None:
    # LDGSTS copies to shared memory while something else computes; narrow ones bring block numbers and, in CoPE, scores
    for name, counts in attention.items():
        if name.endswith(("prefill", "decode", "scores", "values")):
            assert counted(counts, "LDGSTS", ".128") >= 16, name
        elif name.endswith(("merge", "norms")):
            assert counted(counts, "LDG", ".128") >= 4, name


def test_attention_multiplies_on_tensor_cores(attention: Opcodes) -> None:
    for name, counts in attention.items():
        if name.endswith("prefill"):
            assert counted(counts, "HGMMA") > 0, name
        elif name.endswith(("decode", "scores", "values")):
            assert counted(counts, "HMMA") > 0, name


def test_a_linear_bias_costs_one_instruction_a_score(attention: Opcodes) -> None:
    linear, flat = attention["alibi-by-128 decode"], attention["flat-by-128 decode"]
    scores = 16 * 64 // 128  # of a tile, a thread
    assert counted(linear, "FFMA") - counted(flat, "FFMA") == scores


def counted(counts: dict[str, int], opcode: str, modifier: str = "") -> int:
    return sum(count for name, count in counts.items() if name.split(".")[0] == opcode and modifier in name)
