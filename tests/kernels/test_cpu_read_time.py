"""The C++ kernel of attention with positions at read time, against the oracle."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention import read_time_reference
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.cpu import read_time as cpu_read_time
from posenc_runtime.kernels.cpu.build import instructions, may_use_tiles
from posenc_runtime.kernels.cpu.read_time import read_time_attention
from tests.kernels.read_time_cases import CASES, PAIRS_CASES, Case, Method, Tensors, dual_chunk, rerope
from tests.tolerance import ATTENTION_FLOAT32, ATTENTION_OF_BFLOAT16_TIMES_TORCH, ATTENTION_TIMES_TORCH


def attend(tensors: Tensors, kernel=read_time_attention) -> None:  # type: ignore[no-untyped-def]
    case = tensors.case
    kernel(
        tensors.query,
        tensors.key_cache,
        tensors.value_cache,
        case.batch(),
        case.read_time(),
        case.scale,
        tensors.out,
        tensors.logits,
        **({"order": "pairs"} if case.layout == "pairs" else {}),
    )


@pytest.mark.parametrize("name", CASES)
def test_attention_at_read_time_is_as_exact_as_torch(name: str) -> None:
    tensors, plain = Tensors(CASES[name]), Tensors(CASES[name])
    attend(tensors)
    attend(plain, read_time_reference.read_time_attention)
    multiplies_bfloat16 = CASES[name].dtype == torch.bfloat16 and "with bfloat16" in instructions()
    allowed = ATTENTION_OF_BFLOAT16_TIMES_TORCH if multiplies_bfloat16 else ATTENTION_TIMES_TORCH
    assert tensors.error() <= allowed * plain.error()
    assert not tensors.wrote_padding()


@pytest.fixture(params=["tiles", "vectors"])
def multiplied_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What multiplies numbers in the order of AMX. Vectors do where the processor has no tiles."""
    if request.param == "vectors":
        monkeypatch.setattr(cpu_read_time, "may_use_tiles", lambda: False)
    elif not may_use_tiles():
        pytest.skip("this processor has no AMX")
    return str(request.param)


@pytest.mark.parametrize("name", PAIRS_CASES)
def test_attention_over_the_order_of_amx_is_as_exact_as_torch(name: str, multiplied_by: str) -> None:
    tensors, plain = Tensors(PAIRS_CASES[name]), Tensors(dataclasses.replace(PAIRS_CASES[name], layout="columns"))
    attend(tensors)
    attend(plain, read_time_reference.read_time_attention)
    allowed = ATTENTION_OF_BFLOAT16_TIMES_TORCH if multiplied_by == "tiles" else ATTENTION_TIMES_TORCH
    assert tensors.error() <= allowed * plain.error()
    assert not tensors.wrote_padding()


@pytest.mark.parametrize("layout", ["columns", "rows"])
def test_the_entry_computes_attention_over_caches_of_every_layout(layout: str) -> None:
    tensors = Tensors(dataclasses.replace(CASES["sinks"], layout=layout))
    attend(tensors, ops.read_time_attention)
    assert float((tensors.out - tensors.expected).abs().max()) < ATTENTION_FLOAT32


FAULTS: dict[str, dict[str, object]] = {
    "the edge a page late": {"edge": 31},
    "the edge a page early": {"edge": 95},
    "far keys one token further": {"distance": 65},
    "queries within the trained length turned": {"trained_length": 64},
    "queries past the trained length not turned": {"trained_length": 160},
    "no temperature": {"temperature": "none"},
    "the other temperature": {"temperature": "yarn"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_far_beyond_the_tolerance(fault: str) -> None:
    tensors = Tensors(Case(((301, 200),)))
    read_time = tensors.case.read_time()
    planted = dataclasses.replace(read_time, pages=dataclasses.replace(read_time.pages, **FAULTS[fault]))  # type: ignore[arg-type]
    attend(tensors, lambda *given: read_time_attention(*given[:4], planted, *given[5:]))
    assert float((tensors.out - tensors.expected).abs().max()) > 100 * ATTENTION_FLOAT32


@pytest.mark.slow
def test_positions_near_a_million_are_exact() -> None:
    case = Case(
        ((1_048_600, 1),), rerope(65_536, 32_768, 8192), num_heads=1, head_dim=16, block_size=128, rope_theta=1e6
    )
    tensors = Tensors(case)
    attend(tensors)
    assert float((tensors.out - tensors.expected).abs().max()) < ATTENTION_FLOAT32


@pytest.mark.parametrize(
    "name",
    ["every kind", "keys in parts", "dual chunk, trained on more", "bfloat16, heads of 48", "bfloat16, keys in parts"],
)
def test_a_request_gets_the_same_bits_whatever_it_is_served_with(name: str) -> None:
    _compare_with_each_alone(Tensors(CASES[name]))


@pytest.mark.parametrize("name", ["every kind", "keys in parts", "three heads to one", "e4m3"])
def test_the_order_of_amx_gives_a_request_the_same_bits_in_any_company(name: str, multiplied_by: str) -> None:
    _compare_with_each_alone(Tensors(PAIRS_CASES[name]))


def _compare_with_each_alone(together: Tensors) -> None:
    attend(together)
    order = {"order": "pairs"} if together.case.layout == "pairs" else {}
    batch = together.case.batch()
    for request, (length, own) in enumerate(together.case.requests):
        begin = int(batch.query_start_loc[request])
        rows = slice(begin, begin + own)
        alone = PagedBatch(
            batch.block_table[request : request + 1],
            torch.tensor([0, own], dtype=torch.int32),
            batch.seq_lens[request : request + 1],
            own,
            length,
        )
        out = torch.empty_like(together.out[rows])
        read_time_attention(
            together.query[rows],
            together.key_cache,
            together.value_cache,
            alone,
            together.case.read_time(),
            together.case.scale,
            out,
            together.logits,
            **order,  # type: ignore[arg-type]
        )
        assert torch.equal(out, together.out[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "method", [rerope(128, 64, 64), rerope(256, 128, 64, leak=2), dual_chunk(256, 256, 64)], ids=str
)
def test_a_query_gets_the_same_bits_in_whatever_part_of_its_prompt_it_comes(method: Method, dtype: torch.dtype) -> None:
    _compare_with_each_part(Tensors(Case(((700, 700),), method, block_size=64, dtype=dtype)))


def test_the_order_of_amx_gives_a_query_the_same_bits_in_any_part_of_its_prompt(multiplied_by: str) -> None:
    case = Case(((700, 700),), rerope(128, 64, 64), block_size=64, dtype=torch.bfloat16, layout="pairs")
    _compare_with_each_part(Tensors(case))


def _compare_with_each_part(whole: Tensors) -> None:
    attend(whole)
    order = {"order": "pairs"} if whole.case.layout == "pairs" else {}
    table, read_time = whole.case.batch().block_table, whole.case.read_time()
    for first, last in itertools.pairwise((0, 100, 129, 131, 300, 333, 700)):
        part = PagedBatch(
            table,
            torch.tensor([0, last - first], dtype=torch.int32),
            torch.tensor([last], dtype=torch.int32),
            last - first,
            last,
        )
        out = torch.empty_like(whole.query[first:last])
        read_time_attention(
            whole.query[first:last],
            whole.key_cache,
            whole.value_cache,
            part,
            read_time,
            whole.case.scale,
            out,
            **order,  # type: ignore[arg-type]
        )
        assert torch.equal(out, whole.out[first:last])


def test_torch_refuses_the_order_of_amx() -> None:
    tensors = Tensors(CASES["every kind"])
    given = (tensors.query, tensors.key_cache, tensors.value_cache, tensors.case.batch(), tensors.case.read_time())
    with pytest.raises(ValueError, match=r"order must be columns .* got pairs: torch reads no other order"):
        ops.read_time_attention(*given, 1.0, tensors.out, only_far=True, order="pairs")


def test_what_is_not_a_number_in_one_request_reaches_no_other() -> None:
    tensors = Tensors(CASES["every kind"])
    attend(tensors)
    expected = tensors.out.clone()
    tensors.query[3] = math.nan
    attend(tensors)
    assert tensors.out[3].isnan().all()
    assert torch.equal(tensors.out[:3], expected[:3]) and torch.equal(tensors.out[4:], expected[4:])


@pytest.mark.parametrize("worst", ["e4m3", "e5m2, of heads"])
def test_a_cached_number_that_is_none_is_not_read_as_one(worst: str) -> None:
    tensors = Tensors(dataclasses.replace(CASES[worst], requests=((150, 1),)))
    block = int(tensors.case.batch().block_table[0, 0])
    tensors.key_cache.view(torch.uint8)[block, :, 5] = 0x7F
    attend(tensors)
    assert tensors.out.isnan().all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"layout": "rows"}, "must be the halves of one cache", id="rows"),
        pytest.param({"block_size": 16}, "block_size must be a multiple of 32", id="blocks of 16"),
        pytest.param({"head_dim": 24}, "head_dim must be a multiple of 16", id="head_dim 24"),
        pytest.param({"layout": "pairs"}, "query must be bfloat16", id="pairs and float32"),
        pytest.param(
            {"layout": "pairs", "dtype": torch.bfloat16, "head_dim": 48},
            "head_dim must be a multiple of 32",
            id="pairs and head_dim 48",
        ),
    ],
)
def test_caches_that_the_kernel_cannot_read_are_refused(changes: dict[str, object], said: str) -> None:
    tensors = Tensors(dataclasses.replace(Case(((40, 2),)), **changes))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        attend(tensors)
