"""The torch reference of attention with positions at read time, against the oracle, and with planted faults."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import torch

from posenc_runtime.encodings.far_pages import FarPages
from posenc_runtime.kernels.attention import read_time_reference
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time import LayerLogits, ReadTime
from tests.kernels.read_time_cases import CASES, Case, Tensors, rerope
from tests.tolerance import ATTENTION_FLOAT32, ATTENTION_ROW_BFLOAT16


def attend(tensors: Tensors, read_time: ReadTime | None = None) -> None:
    case = tensors.case
    read_time_reference.read_time_attention(
        tensors.query,
        tensors.key_cache,
        tensors.value_cache,
        case.batch(),
        read_time or case.read_time(),
        case.scale,
        tensors.out,
        tensors.logits,
    )


@pytest.mark.parametrize("name", CASES)
def test_the_reference_is_the_oracle_up_to_rounding(name: str) -> None:
    tensors = Tensors(CASES[name])
    attend(tensors)
    if tensors.case.dtype == torch.float32:
        assert float((tensors.out[: len(tensors.expected)] - tensors.expected).abs().max()) < ATTENTION_FLOAT32
    else:
        size = float(tensors.expected.square().mean().sqrt())
        assert tensors.error() < ATTENTION_ROW_BFLOAT16 * size
    assert not tensors.wrote_padding()


@pytest.mark.parametrize("layout", ["rows", "tokens_first"])
def test_caches_of_every_layout_are_read_alike(layout: str) -> None:
    found = []
    for case in (CASES["every kind"], dataclasses.replace(CASES["every kind"], layout=layout)):
        tensors = Tensors(case)
        attend(tensors)
        found.append(tensors.out)
    torch.testing.assert_close(*found, rtol=0, atol=ATTENTION_FLOAT32)


class OffByAPage(FarPages):
    def first_near_key(self, position: int) -> int:
        near = super().first_near_key(position)
        return near and near + self.page


class PageTooFew(FarPages):
    def first_near_key(self, position: int) -> int:
        return max(0, super().first_near_key(position) - self.page)


class BoundedAPageLate(FarPages):
    @property
    def bounded_from(self) -> int:
        return super().bounded_from + self.page


class OfTheLastToken(FarPages):
    """The temperature of the request's length, here of its last position."""

    def factor(self, position: int) -> float:
        return super().factor(300)


class FromTheFirst(FarPages):
    """Queries below the trained length are not stock."""

    def first_near_key(self, position: int) -> int:
        return max(0, (position - self.edge) // self.page * self.page)


def sign(read_time: ReadTime) -> ReadTime:
    return dataclasses.replace(read_time, phases=-read_time.phases)


def one_further(read_time: ReadTime) -> ReadTime:
    pages = dataclasses.replace(read_time.pages, distance=read_time.pages.distance + 1)
    return dataclasses.replace(read_time, pages=pages)


def leaks_one_further(read_time: ReadTime) -> ReadTime:
    assert read_time.pages.leak is not None
    leak = dataclasses.replace(read_time.pages.leak, begins=read_time.pages.leak.begins + 1)
    return dataclasses.replace(read_time, pages=dataclasses.replace(read_time.pages, leak=leak))


def other_pairs(read_time: ReadTime) -> ReadTime:
    return dataclasses.replace(read_time, is_neox_style=not read_time.is_neox_style)


def of_class(kind: type[FarPages]) -> Callable[[ReadTime], ReadTime]:
    def changed(read_time: ReadTime) -> ReadTime:
        said = {field.name: getattr(read_time.pages, field.name) for field in dataclasses.fields(FarPages)}
        return dataclasses.replace(read_time, pages=kind(**said))

    return changed


FAULTS: dict[str, Callable[[ReadTime], ReadTime]] = {
    "the edge a page late": of_class(OffByAPage),
    "the edge a page early": of_class(PageTooFew),
    "the turn in the other direction": sign,
    "far keys one token further": one_further,
    "leaking pages one token further": leaks_one_further,
    "the bound a page late": of_class(BoundedAPageLate),
    "the other order of pairs": other_pairs,
    "the temperature of the request": of_class(OfTheLastToken),
    "queries within the trained length turned": of_class(FromTheFirst),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_far_beyond_the_tolerance(fault: str) -> None:
    # a request of 301 tokens and 200 queries, from below the trained length on
    tensors = Tensors(Case(((301, 200),), rerope(128, 64, 32, leak=2)))
    attend(tensors, FAULTS[fault](tensors.case.read_time()))
    assert float((tensors.out - tensors.expected).abs().max()) > 1000 * ATTENTION_FLOAT32


def test_an_edge_by_tokens_instead_of_pages_is_far_beyond_the_tolerance() -> None:
    tensors = Tensors(Case(((301, 20),)))
    pages = dataclasses.replace(tensors.case.read_time().pages, page=1)
    # the same states in blocks of one token, which pages of one token need
    by_token = Tensors(dataclasses.replace(tensors.case, block_size=1))
    attend(by_token, dataclasses.replace(tensors.case.read_time(), pages=pages))
    assert float((by_token.out - tensors.expected).abs().max()) > 1000 * ATTENTION_FLOAT32


@pytest.mark.slow
def test_positions_near_a_million_are_exact() -> None:
    length = 1_048_600
    tensors = Tensors(
        Case(((length, 1),), rerope(65_536, 32_768, 8192), num_heads=1, head_dim=16, block_size=128, rope_theta=1e6)
    )
    attend(tensors)
    assert float((tensors.out - tensors.expected).abs().max()) < ATTENTION_FLOAT32


def test_a_query_is_read_alike_in_every_chunk_of_its_prompt() -> None:
    whole = Tensors(CASES["a whole prompt"])
    attend(whole)
    for first, last in itertools.pairwise((0, 60, 127, 130, 201, 220)):
        part = Tensors(dataclasses.replace(whole.case, padding=0))
        batch = PagedBatch(
            part.case.batch().block_table,
            torch.tensor([0, last - first], dtype=torch.int32),
            torch.tensor([last], dtype=torch.int32),
            last - first,
            last,
        )
        out = torch.empty_like(part.query[first:last])
        read_time_reference.read_time_attention(
            part.query[first:last], part.key_cache, part.value_cache, batch, part.case.read_time(), part.case.scale, out
        )
        torch.testing.assert_close(out, whole.out[first:last], rtol=0, atol=ATTENTION_FLOAT32)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"logits": LayerLogits(soft_cap=-1.0)}, "soft_cap must be .* got -1.0", id="soft cap"),
        pytest.param({"logits": LayerLogits(sinks=torch.zeros(3))}, "sinks must be .* 2 elements", id="sinks"),
        pytest.param({"logits": LayerLogits(k_scale=torch.ones(2))}, "k_scale must be .* 1 elements", id="k_scale"),
        pytest.param({"key_cache": torch.zeros(4, 1, 32, 32).half()}, "both caches must be", id="data type"),
        pytest.param({"key_cache": torch.zeros(4, 1, 48, 32)}, "both caches must be", id="two shapes"),
        pytest.param({"out": torch.zeros(2, 2, 32).half()}, "one shape and one data type", id="out"),
        pytest.param(
            {"key_cache": torch.zeros(4, 1, 64, 32), "value_cache": torch.zeros(4, 1, 64, 32)},
            "a page must be a multiple of the cache's block of 64 tokens, got 32",
            id="page",
        ),
        pytest.param(
            {"read_time": ReadTime.of(rerope(128, 64, 32).pages(32), torch.ones(17), is_neox_style=True)},
            "rotary_dim must be at most the head's width 32, got 34",
            id="rotary_dim",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], said: str) -> None:
    case = Case(((40, 2),))
    tensors = Tensors(case)
    given: dict[str, object] = {
        "query": tensors.query,
        "key_cache": tensors.key_cache,
        "value_cache": tensors.value_cache,
        "batch": case.batch(),
        "read_time": case.read_time(),
        "scale": case.scale,
        "out": tensors.out,
    }
    with pytest.raises(ValueError, match=said):
        read_time_reference.read_time_attention(**(given | changes))  # type: ignore[arg-type]
