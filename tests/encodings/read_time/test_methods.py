"""Methods of positions at read time: their distances by the papers' formulas, their factors, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest

from posenc_runtime.encodings.far_pages import FarPages
from posenc_runtime.encodings.read_time import available, from_parameters
from posenc_runtime.encodings.read_time.dual_chunk import DualChunk
from tests.references.read_time import dual_chunk_distance, logn_factor, rerope_distance, yarn_factor


def leak_of_one(i: int, j: int) -> int:
    return i - j if i < 16 else min(i - j // 4 * 4, 15) - j % 4


CASES = {
    "rerope": ("rerope", {"window": 16, "page": 8}, 40, rerope_distance(40, 16, 8)),
    "pages as wide as the window": ("rerope", {"window": 8, "page": 8}, 16, rerope_distance(16, 8, 8)),
    "rerope, defaults": ("rerope", {}, 32, rerope_distance(32, 16, 4)),
    "leaky": ("rerope", {"window": 16, "page": 4, "leak": 4}, 32, rerope_distance(32, 16, 4, Fraction(4))),
    "leaky by 2.5": ("rerope", {"window": 8, "page": 4, "leak": 2.5}, 16, rerope_distance(16, 8, 4, Fraction(5, 2))),
    "a leak of 1": ("rerope", {"window": 8, "page": 4, "leak": 1}, 16, leak_of_one),
    "dual chunk": ("dual_chunk", {"chunk_size": 20, "local_size": 4}, 20, dual_chunk_distance(20, 20, 4)),
    "longer trained": ("dual_chunk", {"chunk_size": 20, "local_size": 4}, 31, dual_chunk_distance(31, 20, 4)),
    "half local": ("dual_chunk", {"chunk_size": 17, "local_size": 8}, 24, dual_chunk_distance(24, 17, 8)),
    "dual chunk, defaults": ("dual_chunk", {}, 32, dual_chunk_distance(32, 24, 4)),
}  # fmt: skip


def test_every_method_is_tested() -> None:
    assert {name for name, *_ in CASES.values()} == set(available())


@pytest.mark.parametrize("case", CASES)
def test_a_page_turns_the_query_to_the_distances_of_the_formula(case: str) -> None:
    name, parameters, trained, distance = CASES[case]
    pages = from_parameters(name, parameters).pages(trained)
    for i in range(6 * trained):
        for j in range(i + 1):
            first_key = j // pages.page * pages.page
            assert pages.target(i, first_key) - j == distance(i, j), (i, j)


@pytest.mark.parametrize("case", CASES)
def test_keys_from_the_first_near_one_on_are_read_as_stock_and_no_other_page_is(case: str) -> None:
    name, parameters, trained, distance = CASES[case]
    pages = from_parameters(name, parameters).pages(trained)
    for i in range(6 * trained):
        near = pages.first_near_key(i)
        assert near % pages.page == 0
        assert near == 0 if i < trained else near <= i
        assert all(distance(i, j) == i - j for j in range(near, i + 1))
        if near and parameters.get("leak") != 1:
            assert all(distance(i, j) != i - j for j in range(near))


@pytest.mark.parametrize("case", CASES)
def test_no_key_is_further_away_than_the_trained_length(case: str) -> None:
    name, parameters, trained, _ = CASES[case]
    pages = from_parameters(name, parameters).pages(trained)
    # the largest distance of dual chunks is the chunk size itself, which may be the trained length
    bound = trained + (name == "dual_chunk")
    for i in (*range(trained, 12 * trained), 10**6):
        assert all(0 <= pages.target(i, first) - first < bound for first in range(0, i, pages.page))


@pytest.mark.parametrize("case", CASES)
def test_the_farthest_key_is_as_far_as_it_says(case: str) -> None:
    name, parameters, trained, distance = CASES[case]
    pages = from_parameters(name, parameters).pages(trained)
    seen = max(distance(i, j) for i in range(trained, 12 * trained) for j in range(i + 1))
    assert seen == pages.farthest if pages.leak is None else seen <= pages.farthest


@pytest.mark.parametrize(
    ("name", "trained", "block", "page", "farthest"),
    [
        ("rerope", 3000, None, 320, 1598),
        ("rerope", 3000, 128, 256, 1534),
        ("rerope", 30_000, 16, 3712, 18_558),
        ("rerope", 400, 32, 32, 222),
        ("dual_chunk", 3000, 128, 1792, 2167),
        ("dual_chunk", 512, 128, 256, 320),
        ("dual_chunk", 32_768, 16, 20_480, 24_576),
    ],
)
def test_default_pages_are_whole_blocks_and_runs_of_keys(
    name: str, trained: int, block: int | None, page: int, farthest: int
) -> None:
    pages = from_parameters(name, {}).pages(trained, block)
    assert (pages.page, pages.farthest) == (page, farthest)


def test_targets_are_exact_at_a_million_tokens() -> None:
    pages = from_parameters("rerope", {"window": 4096, "page": 1024, "leak": 3}).pages(8192)
    assert pages.bounded_from == 4096 + 3 * 4095
    first = (1_048_577 - pages.bounded_from) // 1024 * 1024 + 1024
    assert pages.target(1_048_577, first) == 4096 + Fraction(1_048_577 - 4096, 3) + Fraction(2 * first, 3)
    assert pages.target(1_048_577, first - 1024) == 8191 + first - 1024
    assert pages.first_near_key(1_048_577) == 1_044_480


@pytest.mark.parametrize(
    ("temperature", "factor"),
    [("logn", logn_factor(512, 512)), ("yarn", yarn_factor(512, 512)), ("none", lambda i: 1.0)],
)
def test_factors_are_those_of_the_formulas(temperature: str, factor: Any) -> None:
    pages = from_parameters("rerope", {"temperature": temperature}).pages(512)
    for position in (0, 511, 512, 513, 1023, 65_535, 1_048_576):
        assert pages.factor(position) == pytest.approx(factor(position), rel=1e-14)


def test_qwens_configuration_is_read_as_their_backend_did() -> None:
    said = {
        "chunk_size": 262_144,
        "local_size": 8192,
        "original_max_position_embeddings": 262_144,
        "sparse_attention_enabled": False,
    }
    pages = DualChunk.of_checkpoint(said).pages(262_144, block_size=128)
    assert pages == FarPages(
        trained_length=262_144,
        page=253_952,
        edge=8193,
        distance=262_144,
        temperature="yarn",
        tempered_from=262_144,
    )
    bare = DualChunk.of_checkpoint({}).pages(32_768)
    assert (bare.page, bare.distance, bare.temperature) == (7168, 8192, "none")


def test_a_configuration_with_keys_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must have no keys but chunk_size, .* got chunk_length"):
        DualChunk.of_checkpoint({"chunk_length": 8})


REFUSED: list[tuple[str, Mapping[str, Any], int | None, str]] = [
    ("rerope", {"window": 20, "page": 8}, None, "window must be a multiple of .* 8 .* got 20: take 16 or 24"),
    ("rerope", {"window": 8, "page": 16}, None, "page must be at most the window of 8 .* got 16: take a smaller"),
    ("rerope", {"window": 64, "page": 8}, None, "window and page must .* 64 .* got 64 and 8: take a window of 56"),
    ("rerope", {"window": 32, "page": 8}, 16, "page must be a multiple of the KV cache's .* 16 .* got 8: take 16"),
    ("rerope", {}, 16, "page must be given where .* got a trained length of 64: take a page of 32 or less"),
    ("rerope", {}, 48, "page must be given where .* got a trained length of 64: use blocks of 32 tokens or less"),
    ("rerope", {"page": 48}, 16, "window and page must together .* got 48 and 48: take a page of 32 or less, or smal"),
    ("rerope", {"leak": 0.5}, None, "leak must be none or at least 1, where 1 is plain RoPE, got 0.5: give"),
    ("rerope", {"leak": "off"}, None, "leak must be a finite number or none, got 'off'"),
    ("rerope", {"window": 0}, None, "window must be at least 1 token, got 0"),
    ("rerope", {"page": -1}, None, "page must be at least 1 token, got -1"),
    ("rerope", {"page": 2.5}, None, "page must be a whole number, got 2.5"),
    ("rerope", {"temperature": "hot"}, None, "temperature must be one of none, logn, yarn, got 'hot'"),
    ("dual_chunk", {"chunk_size": 16, "local_size": 8}, None, "local_size must be less .* got 8: take 7 or less"),
    ("dual_chunk", {"chunk_size": 96, "local_size": 8}, None, "chunk_size must be at most .* 64 .* got 96: take 64"),
    ("dual_chunk", {"chunk_size": 48, "local_size": 8}, 16, "be a multiple .* 16 .* and 8: take a chunk_size of 40"),
    (
        "dual_chunk",
        {"chunk_size": 56, "local_size": 20},
        24,
        "multiple .* 24 .* and 20: take a chunk_size of 44, or an",
    ),
    ("dual_chunk", {"chunk_size": 64, "local_size": 28}, 32, "multiple .* 32 .* and 28: take a chunk_size of 60, or"),
    ("dual_chunk", {"chunk_size": 60, "local_size": 20}, 64, "multiple .* 64 .* got 60 and 20: take a smaller block_s"),
    ("dual_chunk", {}, 64, "must be given where the trained length is 64 tokens and a block .* 64: give both, or use"),
    ("dual_chunk", {"original_max_position_embeddings": -1}, None, "must be at least 0, got -1"),
    ("dual_chunk", {"original_max_position_embeddings": 1}, None, "must be 0 or at least 2, got 1"),
    ("self_extend", {}, None, "read_time must be one of dual_chunk, rerope, got 'self_extend'"),
]


@pytest.mark.parametrize(("name", "parameters", "block_size", "said"), REFUSED, ids=[case[3] for case in REFUSED])
def test_what_does_not_fit_is_refused_with_the_rule_the_value_and_what_to_do(
    name: str, parameters: Mapping[str, Any], block_size: int | None, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        from_parameters(name, parameters).pages(64, block_size)
