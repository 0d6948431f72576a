"""The pure parts of the benchmarks: statistics, tables, and how engines and servers are configured."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import struct
from typing import Any

import pytest
import yaml

from posenc_runtime.zoo.passkey import PasskeySample
from server.load import load
from server.settings import Settings
from tests.benchmarks import crossings, growth, record
from tests.benchmarks.accuracy import CONFIG, results_tables, scales_remark
from tests.benchmarks.drawing import colours, draw
from tests.benchmarks.engine_process import Batch
from tests.benchmarks.intervals import Estimate, median_and_quartiles, median_and_range, paired_ratio, wilson
from tests.benchmarks.passkey_client import Cell, Haystack, scale_of
from tests.benchmarks.recording import BlockLevels, Recording, Request
from tests.benchmarks.servers import Command
from tests.benchmarks.tables import Table
from tests.benchmarks.throughput import Invalid, Measured, caution, measure, verdict
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
from tests.benchmarks.variants import Checkpoint, Variant, command, ntk_theta, variants

DEMO = Checkpoint(trained=512, rope_theta=10000.0, rotary_dim=32)
SCALES = (1.0, 2.0, 4.0, 8.0)


@pytest.mark.parametrize(
    ("correct", "samples", "low", "high"),
    [
        # Newcombe 1998, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_wilson_interval_has_the_published_values(correct: int, samples: int, low: float, high: float) -> None:
    estimate = wilson(correct, samples)
    assert estimate.value == correct / samples
    assert estimate.low == pytest.approx(low, abs=1e-4)
    assert estimate.high == pytest.approx(high, abs=1e-4)


def test_the_wilson_interval_of_all_correct_ends_at_one_and_has_a_width() -> None:
    estimate = wilson(200, 200)
    assert estimate.high == pytest.approx(1.0)
    assert 0.975 < estimate.low < 0.99


@pytest.mark.parametrize(("correct", "samples"), [(3, 2), (-1, 2), (0, 0)])
def test_an_impossible_count_is_refused(correct: int, samples: int) -> None:
    with pytest.raises(ValueError, match="correct must be"):
        wilson(correct, samples)


def test_quartiles_are_those_of_the_values_themselves() -> None:
    assert median_and_quartiles([5, 1, 4, 2, 3]) == Estimate(3, 2, 4)
    assert median_and_quartiles([7]) == Estimate(7, 7, 7)


def test_a_range_goes_from_the_smallest_to_the_largest_value() -> None:
    assert median_and_range([5, 1, 4, 2, 3]) == Estimate(3, 1, 5)
    with pytest.raises(ValueError, match="at least one"):
        median_and_range([])


def test_the_ratio_is_taken_pair_by_pair_and_so_survives_a_machine_that_slows_down() -> None:
    ratio = paired_ratio([98, 49, 9.8], [100, 50, 10])
    assert ratio.value == ratio.low == ratio.high == pytest.approx(0.98)


def test_pairs_of_which_one_side_is_missing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        paired_ratio([1, 2], [1])


def test_an_estimate_reads_as_a_value_with_its_interval() -> None:
    assert f"{Estimate(0.97, 0.941, 0.989):.2f}" == "0.97 (0.94 to 0.99)"
    assert f"{Estimate(1, 0.5, 1)}" == "1.00 (0.50 to 1.00)"


def test_a_table_is_written_as_markdown() -> None:
    table = Table("T", ("name", "x"), (("a|b", "1"), ("c", "22222")))
    assert table.as_markdown().splitlines() == [
        "| name |     x |",
        "| :--- | ----: |",
        "| a\\|b |     1 |",
        "| c    | 22222 |",
    ]


def test_a_row_with_too_few_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 2 cells"):
        Table("T", ("name", "x"), (("a",),))


def test_a_record_says_when_and_how_and_names_no_folder(tmp_path: pathlib.Path) -> None:
    line = record.command(
        "tests.benchmarks", ["--out", str(tmp_path / "speed"), f"--config={tmp_path}/a.yaml", "--eager"]
    )
    assert line == "python -m tests.benchmarks --out speed --config=a.yaml --eager"
    provenance = record.Provenance("2026-01-02", line, record.versions(), record.machine())
    files = record.write(tmp_path / "new" / "speed", {"cases": []}, provenance, "| table |")
    assert [file.name for file in files] == ["speed.json", "speed.md"]
    written = json.loads(files[0].read_text())
    assert {"date", "command", "versions", "machine", "cases"} == written.keys()
    assert files[1].read_text().startswith("| table |\n\nMeasured on 2026-01-02 with Python ")
    assert str(tmp_path.parent) not in files[0].read_text() + files[1].read_text()


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


def test_a_crossings_steps_lie_between_the_token_at_the_trained_length_and_the_next() -> None:
    said = crossings.BEFORE + 1
    steps = [(0.01, count) for count in range(2, said + 1)] + [(0.05, said), (0.03, said + 1), (0.01, said + 2)]
    crossed = crossings.Crossed(crossings.Case(trained=4096, budget=1024, keeps_prefix=True))
    seconds, tokens = zip(*steps, strict=True)
    crossed.add({"step_seconds": seconds, "tokens_after_step": tokens, "first_token_seconds": 0.5, "speeds": []})
    assert crossed.crossing == [[0.05, 0.03]]
    assert crossed.usual == [0.01] * said
    assert crossed.worst_steps == [5.0]
    assert (crossed.percentile(0.5), crossed.percentile(0.99)) == (0.05, 0.05)
    assert crossings.crossings_table([crossed]).rows[0][0] == "4,096 tokens, 1,024 a step, copied"
    assert crossed.num_budget_tokens == 1024


def test_a_case_of_the_default_is_named_after_the_budget_that_its_engine_measured() -> None:
    crossed = crossings.Crossed(crossings.Case(trained=4096, budget=None, keeps_prefix=False))
    speed = {"token_seconds": 1e-5, "weights_seconds": 0.02, "weight_bytes": 10**8, "block_tokens": 32}
    crossed.add({"step_seconds": (), "tokens_after_step": (), "first_token_seconds": 0.5, "speeds": [speed]})
    assert (crossed.name, crossed.num_budget_tokens) == ("4,096 tokens, default: 1,984 a step, in place", 1984)


def test_growth_counts_keys_logprobs_crossings_and_reused_tokens() -> None:
    sample = PasskeySample("...", "12345", " 12345", 0.5, 1, 4, 0)
    cell = growth.Cell(768)
    cell.count(sample, " 12345.", -1.0, {"crossings": [{}], "prefixes_reused": [{"tokens": 448}]})
    cell.count(sample, " 54321.", -2.0, None)
    assert (cell.samples, cell.correct, cell.crossings, cell.reused_tokens) == (2, 1, 1, 448)
    table = growth.results_table("Requests that grow", {"rerotate": [cell]}, 512)
    assert table.headings == ("deployment", "key found, 768 tokens (1.5x)", "mean logprob, 768 tokens (1.5x)")
    assert table.rows == (("rerotate", "0.50 (0.09 to 0.91)", "-1.500 ± 0.980"),)


def test_ours_is_measured_against_stock_or_pinned_and_stock_against_itself() -> None:
    shared = shared_arguments(cases([1], decode_tokens=16, prefill_tokens=16), compiled=False)
    assert [(a.is_ours, b.is_ours) for a, b in (sides(peer, shared) for peer in ("stock", "pin", "itself"))] == [
        (True, False),
        (True, True),
        (False, False),
    ]
    ours, pinned = sides("pin", shared)
    assert ours.arguments["additional_config"]["posenc"]["on_crossing"] == "rerotate"
    assert pinned.arguments["additional_config"]["posenc"]["on_crossing"] == "pin"


def test_the_cache_holds_the_largest_case_and_the_longest_request() -> None:
    bytes_per_block = 2 * 8 * 4 * 64 * 4 * BLOCK_SIZE
    large = shared_arguments(cases([32], decode_tokens=64, prefill_tokens=1024), compiled=True)
    assert large["kv_cache_memory_bytes"] > 32 * math.ceil(1025 / BLOCK_SIZE) * bytes_per_block
    assert (large["max_num_seqs"], large["enforce_eager"]) == (32, False)
    small = shared_arguments(cases([1], decode_tokens=64, prefill_tokens=64), compiled=False)
    assert small["kv_cache_memory_bytes"] > MAX_MODEL_LEN // BLOCK_SIZE * bytes_per_block


@pytest.fixture
def settings() -> Settings:
    return load(CONFIG, environment={})


def flag(started: Command, name: str) -> str:
    arguments = started.on_port(8123)
    return arguments[arguments.index(name) + 1]


def test_ours_are_started_with_the_command_line_of_the_product(settings: Settings) -> None:
    started = command(variants(DEMO, SCALES)["dynamic"], CONFIG, ["engine.max_num_seqs=4"], settings, 4096)
    name, *rest = started.on_port(8123)
    assert pathlib.Path(name).name == "posenc"
    assert rest[:3] == ["serve", "--config", str(CONFIG)]
    assert rest[3:] == [
        *("--set", "engine.max_num_seqs=4"),
        *("--set", "scaling.rope_type=dynamic"),
        *("--set", "max_model_len=4096"),
        *("--set", "server.host=127.0.0.1"),
        *("--set", "server.port=8123"),
    ]


@pytest.mark.parametrize("name", ["unscaled", "yarn", "dynamic", "linear"])
def test_every_deployment_of_ours_is_one_that_our_settings_accept(name: str) -> None:
    variant = variants(DEMO, SCALES)[name]
    loaded = load(CONFIG, list(variant.sets or ()), environment={})
    assert tuple(loaded.scaling.scales) == variant.scales


def test_stock_vllm_gets_the_same_engine_and_none_of_our_plugin(settings: Settings) -> None:
    started = command(variants(DEMO, SCALES)["static-yarn"], CONFIG, [], settings, 4096)
    assert started.environment == {"VLLM_PLUGINS": ""}
    assert started.on_port(8123)[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert flag(started, "--port") == "8123"
    assert flag(started, "--max-model-len") == "4096"
    assert "--enforce-eager" in started.on_port(8123)
    for key, value in settings.engine.items():
        if not isinstance(value, bool):
            assert yaml.safe_load(flag(started, "--" + key.replace("_", "-"))) == value
    assert json.loads(flag(started, "--hf-overrides")) == {
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 512,
            "rope_theta": 10000.0,
        },
    }


def test_static_ntk_divides_the_lowest_frequency_by_the_factor() -> None:
    theta = ntk_theta(10000.0, 32, 8.0)
    lowest = -30 / 32
    assert theta**lowest == pytest.approx(10000.0**lowest / 8)
    rope = variants(DEMO, SCALES)["static-ntk"].rope_parameters
    assert rope == {"rope_type": "default", "rope_theta": theta}


def test_a_checkpoint_is_read_from_the_folder_of_its_model(tmp_path: pathlib.Path) -> None:
    config = {
        "max_position_embeddings": 512,
        "hidden_size": 192,
        "num_attention_heads": 6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    checkpoint = Checkpoint.of(Settings(model=str(tmp_path)))
    assert (checkpoint.trained, checkpoint.rope_theta, checkpoint.rotary_dim) == (512, 10000.0, 32)
    assert checkpoint.weights_sha256.startswith("e3b0c442")


def test_the_expected_scale_is_the_smallest_that_covers_the_request() -> None:
    scaled = variants(DEMO, SCALES)["yarn"]
    lengths = [256, 512, 513, 1024, 2048, 4096]
    assert [scaled.expected_scale(length, 512) for length in lengths] == [1, 1, 2, 2, 4, 8]
    unscaled = variants(DEMO, SCALES)["unscaled"]
    assert {unscaled.expected_scale(length, 512) for length in lengths} == {1}
    assert Variant("stock").expected_scale(4096, 512) is None


def test_the_scale_is_read_from_what_a_response_says_beside_openai_fields() -> None:
    assert scale_of({"kv_transfer_params": {"posenc": {"scale": 4.0}}}) == 4
    assert scale_of({"kv_transfer_params": None}) is None
    assert scale_of(None) is None


def answered(cell: Cell, text: str, scale: float | None, expected: float | None) -> None:
    sample = PasskeySample("", "12345", " 12345", 0.5, cell.haystack.length - 6, cell.haystack.length, 0)
    cell.count(sample, text, scale, expected)


def test_a_cell_counts_right_answers_and_scales() -> None:
    cell = Cell(Haystack(1024))
    answered(cell, " 12345", 2.0, 2.0)
    answered(cell, " 12346", 2.0, 2.0)
    answered(cell, " 12345", 4.0, 2.0)
    assert dataclasses.asdict(cell) == {
        "haystack": {"length": 1024, "decoys": 0},
        "samples": 3,
        "correct": 2,
        "scales": {"2": 2, "4": 1},
        "wrong_scales": 1,
        "wrong_lengths": 0,
    }


def test_a_table_has_a_row_for_each_deployment_and_a_column_for_each_length() -> None:
    results = {
        "yarn": [Cell(Haystack(256), 200, 194), Cell(Haystack(4096), 200, 100), Cell(Haystack(256, 6), 200, 180)]
    }
    table, harder = results_tables(results, trained=512)
    assert harder.headings == ("deployment", "256 tokens (0.5x)") and "among 6 other codes" in harder.title
    assert harder.rows == (("yarn", "0.90 (0.85 to 0.93)"),)
    assert table.headings == ("deployment", "256 tokens (0.5x)", "4096 tokens (8x)")
    assert table.rows == (("yarn", "0.97 (0.94 to 0.99)", "0.50 (0.43 to 0.57)"),)


def test_a_response_at_another_scale_is_said_plainly() -> None:
    good, bad = Cell(Haystack(256), 2, 2, {"1": 2}), Cell(Haystack(512), 2, 2, {"1": 1, "2": 1}, wrong_scales=1)
    stock = Cell(Haystack(256), 5, 5, {"none": 5})
    assert scales_remark({"yarn": [good], "stock": [stock]}).startswith("All 2 responses of Posenc ran at the scale")
    assert scales_remark({"yarn": [good, bad]}) == "NOT at the expected scale: yarn at 512 tokens (1 of 2)."


def test_block_levels_are_read_from_the_metrics_and_summed_over_engines() -> None:
    levels = BlockLevels()
    levels.add(0.0, 'posenc_kv_blocks{engine="0",scale="1"} 3.0\n')
    levels.add(
        0.5,
        'posenc_kv_blocks{engine="0",scale="1"} 2.0\nposenc_kv_blocks{engine="1",scale="1"} 5.0\n'
        'posenc_kv_blocks{engine="0",scale="8"} 9.0\nvllm_other{scale="1"} 4.0\n',
    )
    assert levels.times == [0.0, 0.5]
    assert levels.by_scale == {"1": [3.0, 7.0], "8": [0.0, 9.0]}


def test_the_picture_is_a_png_of_1200_by_600(tmp_path: pathlib.Path) -> None:
    long = Request("long request", "", 3200, 50, 0.0, [1.0 + 0.1 * index for index in range(50)], 8.0)
    short = Request("short request", "", 200, 20, 2.0, [2.1 + 0.1 * index for index in range(20)], 1.0)
    levels = BlockLevels([0.0, 1.0, 6.5], {"1": [0.0, 7.0, 0.0], "2": [0.0] * 3, "8": [100.0, 110.0, 0.0]})
    draw(Recording(long, short, levels), tmp_path / "new" / "picture.png", title="A title")
    header = (tmp_path / "new" / "picture.png").read_bytes()[:24]
    assert struct.unpack(">II", header[16:24]) == (1200, 600)


def test_every_scale_has_a_colour_of_its_own_and_one_alone() -> None:
    long, short = Request("long", "", 1, 1, scale=8.0), Request("short", "", 1, 1, scale=None)
    found = colours(Recording(long, short, BlockLevels([], {"1": [], "2": [], "4": [], "8": []})))
    assert list(found) == ["1", "2", "4", "8", "none"]
    assert len(set(found.values())) == len(found)
