"""The pure parts of the benchmark of speed: two engines that take turns, what is compared, and the verdict."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import typer

from tests.benchmarks.__main__ import Peer, main
from tests.benchmarks.engine_process import Batch
from tests.benchmarks.throughput import Invalid, Measured, caution, measure, spread_of_starts, verdict
from tests.benchmarks.two_engines import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    Case,
    cases,
    our_arguments,
    shared_arguments,
    sides,
    stock_arguments,
)


class FakeEngine:
    """Takes a fixed time for every batch and notes what it was asked."""

    def __init__(self, name: str, calls: list[tuple[str, list[list[int]]]], **answer: Any) -> None:
        self._name, self._calls, self._answer = name, calls, answer

    def run(self, prompts: list[list[int]], max_tokens: int) -> Batch:
        self._calls.append((self._name, prompts))
        answer: dict[str, Any] = {
            "seconds": 2.0,
            "prompt_tokens": sum(map(len, prompts)),
            "cached_tokens": 0,
            "generated_tokens": len(prompts) * max_tokens,
            "scales": [1.0] if self._name == "ours" else [],
        }
        return Batch(**(answer | self._answer))

    def cpu_seconds(self) -> float:
        return 0.0

    def wait_until_idle(self) -> float:
        return 0.0


def run_fakes(case: Case, *, pairs: int = 3, **ours: Any) -> tuple[Measured, list[tuple[str, list[list[int]]]]]:
    calls: list[tuple[str, list[list[int]]]] = []
    engines = FakeEngine("ours", calls, **ours), FakeEngine("stock", calls)
    measured = measure(case, *engines, pairs=pairs, warm_ups=1, seed=0, advance=lambda: None)
    return measured, calls


def test_engines_take_turns_and_the_order_alternates() -> None:
    _, calls = run_fakes(Case("decode", 2, 8, 10))
    assert [name for name, _ in calls] == ["stock", "ours", "ours", "stock", "stock", "ours", "ours", "stock"]


def test_both_sides_of_a_pair_get_the_same_prompts_and_no_two_pairs_do() -> None:
    _, calls = run_fakes(Case("decode", 2, 8, 10))
    pairs = [calls[index : index + 2] for index in range(0, len(calls), 2)]
    assert all(first[1] == second[1] for first, second in pairs)
    assert len({str(first[1]) for first, _ in pairs}) == len(pairs)


def test_short_batches_with_prompts_of_their_own_are_repeated_as_often_on_both_sides() -> None:
    calls: list[tuple[str, list[list[int]]]] = []
    engines = FakeEngine("ours", calls, seconds=0.3), FakeEngine("stock", calls, seconds=0.4)
    measured = measure(
        Case("decode", 2, 8, 10), *engines, pairs=2, warm_ups=0, seed=0, advance=lambda: None, sample_seconds=1.0
    )
    # Ours goes first and fills a second with four; then stock vLLM does with three.
    assert [name for name, _ in calls] == ["ours"] * 4 + ["stock"] * 4 + ["stock"] * 3 + ["ours"] * 3
    assert [prompts for _, prompts in calls[:4]] == [prompts for _, prompts in calls[4:8]]
    assert len({str(prompts) for _, prompts in calls}) == 4 + 3
    assert measured.batches == [4, 3]
    assert measured.ours == pytest.approx([20 / 0.3] * 2) and measured.stock == pytest.approx([20 / 0.4] * 2)
    assert measured.step_seconds == pytest.approx([0.04] * 2)


def test_engines_started_anew_get_new_prompts_and_ratios_of_their_own() -> None:
    case = Case("decode", 2, 8, 10)
    first, calls = run_fakes(case, seconds=2.5)
    assert spread_of_starts([first]) == []
    again: list[tuple[str, list[list[int]]]] = []
    engines = FakeEngine("ours", again), FakeEngine("stock", again)
    both = measure(case, *engines, pairs=2, warm_ups=1, seed=0, advance=lambda: None, before=first)
    assert (both.starts, both.ratios_by_start) == ([1, 1, 1, 2, 2], [0.8, 1.0])
    assert both.ratio.value == 0.8
    assert not {str(prompts) for _, prompts in calls} & {str(prompts) for _, prompts in again}
    assert spread_of_starts([both])[0].endswith("Medians of the starts: decode, batch 2 0.800, 1.000.")


def test_decode_counts_generated_tokens_and_prefill_counts_prompt_tokens() -> None:
    decode, _ = run_fakes(Case("decode", 2, 8, 10))
    assert decode.ours == decode.stock == [10.0, 10.0, 10.0]
    assert decode.step_seconds == [0.2, 0.2, 0.2]
    prefill, _ = run_fakes(Case("prefill", 2, 100, 1))
    assert prefill.ours == [100.0, 100.0, 100.0]
    assert prefill.step_seconds == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"cached_tokens": 32}, "prefix cache"),
        ({"scales": []}, "named no scale"),
        ({"generated_tokens": 3}, "3 tokens"),
    ],
)
def test_a_run_that_measured_something_else_is_refused(answer: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        run_fakes(Case("decode", 2, 8, 10), **answer)


def test_the_verdict_names_the_cases_that_miss_the_target() -> None:
    good = Measured(Case("decode", 1, 8, 10), ours=[98.0], stock=[100.0])
    bad = Measured(Case("prefill", 8, 8, 10), ours=[95.0], stock=[100.0])
    assert verdict([good]) == "Every case reaches 0.97."
    assert verdict([good, bad]) == "1 of 2 cases miss 0.97: prefill, batch 8 (0.950)."


def test_a_case_whose_quartiles_span_the_target_is_named_and_so_are_too_few_pairs() -> None:
    noisy = Measured(Case("decode", 1, 8, 10), ours=[90.0, 98.0, 99.0], stock=[100.0] * 3)
    assert caution([noisy]) == [
        "Only 3 pairs a case: too few to quote, 7 are needed.",
        "The quartiles span 0.97, so that more pairs could turn the verdict: decode, batch 1.",
    ]
    assert caution([Measured(Case("decode", 1, 8, 10), ours=[98.0] * 7, stock=[100.0] * 7)]) == []


def test_every_measurement_can_be_written_as_json() -> None:
    measured, _ = run_fakes(Case("decode", 2, 8, 10))
    assert json.loads(json.dumps(measured.to_json()))["ratio"]["value"] == 1.0


def test_both_engines_differ_in_nothing_but_how_positions_are_rotated() -> None:
    shared = shared_arguments(cases([1, 32], decode_tokens=128, prefill_tokens=1024), compiled=False)
    ours, stock = our_arguments(shared), stock_arguments(shared)
    assert {key: ours[key] for key in shared} == {key: stock[key] for key in shared} == shared
    assert ours.keys() - stock.keys() == {
        *("additional_config", "kv_transfer_config"),
        "scheduler_cls",  # crossings
        "worker_extension_cls",  # what attends in each layer, asked once
    }
    assert ours["max_model_len"] == stock["max_model_len"] == 4096
    assert ours["additional_config"]["posenc"]["scales"] == [1, 2, 4, 8]
    assert stock["hf_overrides"]["rope_parameters"] == {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "rope_theta": 10000.0,
    }


PEERS = ("stock", "pin", "unscaled", "itself")


def test_ours_is_measured_against_stock_or_pinned_and_stock_against_itself() -> None:
    shared = shared_arguments(cases([1], decode_tokens=16, prefill_tokens=16), compiled=False)
    assert [(a.is_ours, b.is_ours) for a, b in (sides(peer, shared) for peer in PEERS)] == [
        (True, False),
        (True, True),
        (True, False),
        (False, False),
    ]
    ours, pinned = sides("pin", shared)
    assert ours.arguments["additional_config"]["posenc"]["on_crossing"] == "rerotate"
    assert pinned.arguments["additional_config"]["posenc"]["on_crossing"] == "pin"
    read_time, unscaled = sides("unscaled", shared)
    assert read_time.arguments["additional_config"] == {"posenc": {"rope_type": "rerope"}}
    assert {key: unscaled.arguments[key] for key in shared} == shared
    assert unscaled.arguments["max_model_len"] == read_time.arguments["max_model_len"] == 4096
    assert [side.names_scales for side in (ours, pinned, read_time, unscaled)] == [True, True, False, False]


def test_requests_past_the_trained_length_are_not_compared_with_an_unscaled_model() -> None:
    with pytest.raises(typer.BadParameter, match="at most 512 tokens, the trained length, got 1025"):
        main(against=Peer.unscaled)


def test_the_cache_holds_the_largest_case_and_the_longest_request() -> None:
    bytes_per_block = 2 * 8 * 4 * 64 * 4 * BLOCK_SIZE
    large = shared_arguments(cases([32], decode_tokens=64, prefill_tokens=1024), compiled=True)
    assert large["kv_cache_memory_bytes"] > 32 * math.ceil(1025 / BLOCK_SIZE) * bytes_per_block
    assert (large["max_num_seqs"], large["enforce_eager"]) == (32, False)
    small = shared_arguments(cases([1], decode_tokens=64, prefill_tokens=64), compiled=False)
    assert small["kv_cache_memory_bytes"] > MAX_MODEL_LEN // BLOCK_SIZE * bytes_per_block
