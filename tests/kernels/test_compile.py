"""What the compiler makes of the Triton kernels for an H100, which needs no GPU."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from typing import Any

import pytest

from tests.kernels.processes import output_of

pytestmark = pytest.mark.compiled

Opcodes = dict[str, dict[str, int]]

SHARED_BYTES = 227 * 1024  # that a program may have: CUDA C++ Programming Guide, compute capability 9.0
MULTIPROCESSORS = 132  # of an H100
# Programs that a multiprocessor has room for at once, at least, beside their registers and shared memory: while some
# wait for memory, others compute. Prompts' tiles are made so large that the tensor cores wait for nobody.
AT_ONCE = {
    **dict.fromkeys(["neox-128", "gptj-128", "neox-one-head", "neox-half-of-128", "gptj-half-of-128"], 7),
    **dict.fromkeys(["neox-axes-128", "gptj-axes-128"], 7),
    **dict.fromkeys(["float8-128", "float8-gptj-128"], 7),
    **{"own-scales-int8": 4, "own-scales-float8": 4, "own-scales-half-of-128": 8},
    **dict.fromkeys(["neox-64", "gptj-64", "neox-32-of-80", "rope-rows"], 14),
    **dict.fromkeys(["neox-latents", "gptj-latents"], 6),
    **dict.fromkeys(["neox-end-of-96", "gptj-end-of-96"], 12),
    "neox-192-values-of-128": 7,
    **dict.fromkeys(["neox-32-to-8-by-128", "float8-28-to-4-by-128"], 16),
    "gptj-half-of-128-out-of-place": 11,
    **dict.fromkeys(["alibi-32-to-8-by-128-windowed prefill", "alibi-by-64 prefill"], 1),
    **dict.fromkeys(["alibi-32-to-8-by-128-windowed decode", "alibi-by-128 decode", "flat-by-128 decode"], 3),
    **dict.fromkeys(["power-by-80 decode", "log decode"], 3),
    **dict.fromkeys(["alibi-32-to-8-by-128-windowed plan", "power-by-80 plan"], 2),
    "alibi-of-many-windowed plan": 8,
    "key-norms norms": 16,
    "float32-quarter-in-blocks-of-128": 2,
    "flat-by-128 merge": 8,
    "table decode": 2,
    "float32 decode": 1,
    "cope-64 cope-prefill": 2,
    "cope-64 cope-scores": 5,
    "cope-64 cope-values": 3,
    "cope-without-room cope-values": 2,
    "key-norms maxima": 32,
    "read-time read-time-decode": 3,
    "read-time-float8 read-time-decode": 2,
    "read-time read-time-turn": 8,
    "read-time read-time-prefill": 1,
    "read-time-leaky read-time-decode": 3,
    "read-time-leaky read-time-turn": 8,
    "read-time-leaky read-time-prefill": 1,
    "read-time-gptj read-time-decode": 3,
    "read-time-gptj read-time-turn": 8,
    "read-time-gptj read-time-prefill": 1,
    "read-time-by-64 read-time-decode": 4,
    "read-time-by-64 read-time-turn": 12,
    "read-time-by-64 read-time-prefill": 1,
    "read-time-by-256 read-time-decode": 1,
    "read-time-by-256 read-time-turn": 4,
    "read-time-by-256 read-time-prefill": 1,
    "read-time-float8 read-time-prefill": 1,
}
# Loads and stores of local memory, at most, where a tile takes more registers than a thread may have. Each is carried
# out once a program: before, between and after the loops over keys.
SPILLED = {"read-time-gptj read-time-prefill": 2, "read-time-by-256 read-time-prefill": 83}


def ptxas() -> pathlib.Path | None:
    """The assembler in the Triton wheel, found without an import of Triton."""
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        return None
    return pathlib.Path(triton.origin).parent / "backends/nvidia/bin/ptxas"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    assembler = ptxas()
    if assembler is None or not assembler.exists():
        pytest.skip("the Triton wheel brings no ptxas here")
    cache = str(tmp_path_factory.mktemp("triton"))
    found: dict[str, Any] = json.loads(output_of("compile_sm90.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache))
    return found


@pytest.fixture
def programs(compiled: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = compiled["programs"]
    return found


@pytest.fixture
def moved(compiled: dict[str, Any]) -> Opcodes:
    found: Opcodes = compiled["moved"]
    return found


@pytest.fixture
def stored(compiled: dict[str, Any]) -> Opcodes:
    found: Opcodes = compiled["stored"]
    return found


@pytest.fixture
def attention(compiled: dict[str, Any]) -> Opcodes:
    found: Opcodes = compiled["attention"]
    return found


def test_registers_and_shared_memory_leave_room_for_programs_beside_waiting_ones(
    programs: dict[str, int],
) -> None:
    assert programs.keys() == AT_ONCE.keys()
    assert {name: room for name, room in programs.items() if room < AT_ONCE[name]} == {}


def test_the_widest_heads_fit_into_a_programs_shared_memory(tmp_path: pathlib.Path) -> None:
    taken = json.loads(output_of("compile_widest.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path)))
    assert len(taken) == 21
    assert {name: size for name, size in taken.items() if size > SHARED_BYTES} == {}


def test_programs_that_walk_a_list_have_room_at_once(programs: dict[str, int]) -> None:
    from posenc_runtime.kernels.attention import bias_decode, cope_decode, read_time_decode

    walking = {
        "alibi-32-to-8-by-128-windowed decode": bias_decode.PROGRAMS,
        "alibi-by-128 decode": bias_decode.PROGRAMS,
        "read-time read-time-decode": read_time_decode.PROGRAMS,
        "cope-64 cope-scores": cope_decode.SCORE_PROGRAMS,
        "cope-64 cope-values": cope_decode.VALUE_PROGRAMS // 2,  # see there
        "cope-without-room cope-values": cope_decode.AGAIN_PROGRAMS,
    }
    for name, number in walking.items():
        room = programs[name] * MULTIPROCESSORS
        assert room >= number, f"{name}: the last would begin when the first end, alone with the memory's speed"


def test_programs_that_share_what_is_to_be_turned_have_room_at_once(programs: dict[str, int]) -> None:
    from posenc_runtime.kernels.rotary import launches

    assert programs["neox-128"] * MULTIPROCESSORS >= launches.PROGRAMS


def test_no_kernel_spills_registers_or_takes_local_memory_but_for_known_ones(
    moved: Opcodes, stored: Opcodes, attention: Opcodes
) -> None:
    for name, counts in (moved | stored | attention).items():
        assert sum(counts.values()) > 50, f"{name}: no machine code was listed"
        assert counted(counts, "LDL") + counted(counts, "STL") <= SPILLED.get(name, 0), name


def test_keys_and_values_are_read_and_written_sixteen_bytes_at_a_time(moved: Opcodes) -> None:
    for name, counts in moved.items():
        if name == "rope-rows":  # as many as there happen to be, eight bytes each
            continue
        if name.startswith("own-scales"):  # a key and its scale are 132 bytes, so that values begin at multiples of 4
            for kind in ("LDG", "STG"):
                narrow = counted(counts, kind, ".U8") + counted(counts, kind, ".U16")
                assert counted(counts, kind) > narrow == 0, name
            continue
        stores, wide_stores = counted(counts, "STG"), counted(counts, "STG", ".128")
        if name.startswith("float8"):  # eight elements of a half of a key are eight bytes, and so are block numbers
            for kind in ("STG", "LDG", "LDGSTS"):
                assert counted(counts, kind) == counted(counts, kind, ".128") + counted(counts, kind, ".64") > 0, name
            continue
        assert stores == wide_stores > 0, name
        # each stored element has been loaded; what is loaded besides are 64-bit block numbers, addresses, positions
        assert counted(counts, "LDG", ".128") + counted(counts, "LDGSTS", ".128") >= wide_stores, name
        assert counted(counts, "LDG") == counted(counts, "LDG", ".128") + counted(counts, "LDG", ".64"), name
        # keys come through shared memory, two heads before the loop and one in it, their layers' addresses one ahead
        assert counted(counts, "LDGSTS", ".128") == 6, name
        assert counted(counts, "LDGSTS", ".64") == counted(counts, "LDGSTS") - 6 <= 5, name


def test_rotation_into_the_cache_reads_and_writes_sixteen_bytes_at_a_time(stored: Opcodes) -> None:
    for name, counts in stored.items():
        # queries, keys and values once each; what is loaded besides are position, slot, scale, factor and phases
        assert counted(counts, "LDG", ".128") >= 6, name
        assert counted(counts, "LDG") - counted(counts, "LDG", ".128") <= 5 + 2 * name.startswith("float8"), name
        narrower = counted(counts, "STG") - counted(counts, "STG", ".128")
        if name.startswith("float8"):  # sixteen bytes of a half of a query or a key become eight
            assert counted(counts, "STG", ".64") == narrower <= 4, name
        else:
            assert narrower == 0, name


def test_attention_reads_keys_and_values_sixteen_bytes_at_a_time_ahead_of_their_use(attention: Opcodes) -> None:
    # LDGSTS copies to shared memory while something else computes; narrow ones bring block numbers and, in CoPE, scores
    for name, counts in attention.items():
        # of keys, or of values, a thread; twice as many threads have heads of 256, and as many have those of 64
        tile = 64 * 16 // 128 // (2 if "by-64" in name else 1)
        copies = counted(counts, "LDGSTS", ".128")
        # of a lone query two tiles before the loop and one in it; under CoPE embeddings, or gated tiles, besides
        if name == "read-time-float8 read-time-decode":  # half of it, some of which is copied by eight bytes
            assert copies + counted(counts, "LDGSTS", ".64") / 2 == 3 * tile, name
        elif name.endswith("decode"):
            assert copies == 6 * tile, name
        elif name.endswith("scores"):
            assert copies >= 3 * tile + 8, name
        elif name.endswith("values"):
            assert copies >= 3 * tile + 2 * tile, name
        elif name.endswith("prefill"):
            assert copies >= 16, name
        elif name.endswith(("merge", "norms")):
            assert counted(counts, "LDG", ".128") >= 4, name
        elif name.endswith("plan"):  # the norms of a block's last slots, of four heads at a time
            a_warp = 128 // 32  # blocks, a thread
            assert counted(counts, "LDG", ".128") >= a_warp, name


def test_attention_multiplies_on_tensor_cores(attention: Opcodes) -> None:
    for name, counts in attention.items():
        if name.endswith("prefill"):
            assert counted(counts, "HGMMA") > 0, name
        elif name.endswith(("decode", "scores", "values")):
            assert counted(counts, "HMMA") > 0, name


def test_the_assembler_leaves_out_no_product_of_matrices(compiled: dict[str, Any], attention: Opcodes) -> None:
    # It did where a product started at a constant, and left a product of nothing, with nothing, in its place.
    of_nothing = "HGMMA.64x8x16.F16"
    kept = {name: counted(counts, "HGMMA") - counts.get(of_nothing, 0) for name, counts in attention.items()}
    assert kept == {name: compiled["products"][name] for name in attention}
    assert kept["cope-64 cope-prefill"] > 0


def test_positions_of_a_prompts_keys_are_found_by_the_threads_that_have_their_scores(attention: Opcodes) -> None:
    prefill = attention["cope-64 cope-prefill"]
    a_thread = 64 * 32 // 128  # scores of a tile
    embeddings = 128 * 64 // (4 * 128)  # four of bfloat16 at a time, before the loops
    # a look-up for each, in tiles of which all keys are there for all rows and in others; none is passed to be summed
    assert counted(prefill, "LDG", ".64") == 2 * a_thread + embeddings
    assert counted(prefill, "STSM") == 0
    # What threads ask each other for, which a scan adds to: in three loops a row's maximum and its sum, and in two of
    # them the sum of its gates, of two rows a thread, each held by four; and whether all rows stand at the last
    # position, the halves of one number a thread.
    a_row, a_warp = 2, 5  # steps of a reduction
    assert counted(prefill, "SHFL") == (3 * 2 + 2) * 2 * a_row + 2 * a_warp


def test_a_linear_bias_costs_one_instruction_a_score(attention: Opcodes) -> None:
    linear, flat = attention["alibi-by-128 decode"], attention["flat-by-128 decode"]
    scores = 16 * 64 // 128  # of a tile, a thread
    assert counted(linear, "FFMA") - counted(flat, "FFMA") == scores


def counted(counts: dict[str, int], opcode: str, modifier: str = "") -> int:
    return sum(count for name, count in counts.items() if name.split(".")[0] == opcode and modifier in name)
