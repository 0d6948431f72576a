"""The pure parts of the benchmark of accuracy: how servers are started, and how answers are counted and shown."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator

import pytest
import typer
import yaml

from posenc_runtime.zoo.passkey import PasskeySample
from server.deployment.load import load
from server.deployment.settings import Settings
from tests.benchmarks import accuracy
from tests.benchmarks.accuracy import (
    CONFIG,
    difference,
    differences_tables,
    kept,
    results_tables,
    scales_remark,
    write,
)
from tests.benchmarks.passkey_client import Cell, Haystack, scale_of
from tests.benchmarks.servers import Command
from tests.benchmarks.variants import Checkpoint, Variant, command, ntk_theta, variants

DEMO = Checkpoint(trained=512, rope_theta=10000.0, rotary_dim=32)
SCALES = (1.0, 2.0, 4.0, 8.0)


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
        *("--set", "scaling.scales=[1, 2, 4, 8]"),
        *("--set", "max_model_len=4096"),
        *("--set", "server.host=127.0.0.1"),
        *("--set", "server.port=8123"),
    ]


@pytest.mark.parametrize("name", [name for name, one in variants(DEMO, SCALES).items() if one.sets])
def test_every_deployment_of_ours_is_one_that_our_settings_accept(name: str) -> None:
    variant = variants(DEMO, SCALES)[name]
    loaded = load(CONFIG, list(variant.sets or ()), environment={})
    # Positions at read time have no scales: the settings keep their default, and responses name none.
    assert tuple(loaded.scaling.scales) == (variant.scales or (1,))


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
    assert scale_of({"kv_transfer_params": {"posenc": {"rope_type": "rerope", "crossings": []}}}) is None
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
        "right": [0, 0],
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


def test_a_cell_that_was_not_measured_yet_is_a_dash() -> None:
    results = {
        "yarn": [Cell(Haystack(512), 200, 194), Cell(Haystack(256), 200, 100)],
        "rerope": [Cell(Haystack(256), 4, 4)],
    }
    [table] = results_tables(results, trained=512)
    assert table.headings == ("deployment", "256 tokens (0.5x)", "512 tokens (1x)")
    assert [row[2] for row in table.rows] == ["0.97 (0.94 to 0.99)", "-"]


def test_deployments_are_compared_sample_by_sample() -> None:
    base, other = Cell(Haystack(1024), 100, 2, right=[1, 2]), Cell(Haystack(1024), 100, 3, right=[2, 3, 4])
    assert difference(other, base).value == pytest.approx(0.01)
    assert difference(other, base).half == pytest.approx(0.0345, abs=0.0005)
    assert difference(base, base).half == 0
    [table] = differences_tables({"yarn": [base], "rerope": [other]}, trained=512)
    assert table.rows == (("rerope", "+0.01 ± 0.03"),) and "difference from yarn" in table.title
    assert not differences_tables({"yarn": [base]}, trained=512)


def test_a_run_that_was_stopped_goes_on_with_the_same_samples(tmp_path: pathlib.Path) -> None:
    results = {"yarn": [Cell(Haystack(1024, 6), 2, 1, {"2": 2}, right=[7_000_001])]}
    out, sampled = tmp_path / "accuracy", {"samples": 2, "seed": 7_000_000}
    write(results, 512, sampled, out)
    assert kept(out, sampled) == results
    assert kept(tmp_path / "other", sampled) == {}
    with pytest.raises(typer.BadParameter, match="other seed"):
        kept(out, sampled | {"seed": 1})


def test_a_response_at_another_scale_is_said_plainly() -> None:
    good, bad = Cell(Haystack(256), 2, 2, {"1": 2}), Cell(Haystack(512), 2, 2, {"1": 1, "2": 1}, wrong_scales=1)
    stock = Cell(Haystack(256), 5, 5, {"none": 5})
    assert scales_remark({"yarn": [good], "stock": [stock]}).startswith("All 2 responses that name a scale ran at the")
    assert scales_remark({"yarn": [good, bad]}) == "NOT at the expected scale: yarn at 512 tokens (1 of 2)."


def test_each_deployment_is_measured_where_no_cell_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock vLLM's among them."""
    asked: list[tuple[str, list[int]]] = []

    def measured(variant: Variant, *given: object) -> Iterator[Cell]:
        haystacks = next(each for each in given if isinstance(each, dict))
        asked.append((variant.name, [haystack.length for haystack in haystacks]))
        yield from (Cell(haystack, samples=1, correct=1, right=[0]) for haystack in haystacks)

    monkeypatch.setattr(accuracy, "_measure", measured)
    monkeypatch.setattr(accuracy, "_make_samples", lambda settings, haystacks, *_: dict.fromkeys(haystacks, ()))
    names, out = ["yarn", "static-yarn"], tmp_path / "result"
    accuracy.main(samples=1, deployment=names, multiple=[1.0], decoys=[6], out=out)
    accuracy.main(samples=1, deployment=[*names, "rerope"], multiple=[1.0, 2.0], decoys=[6], out=out)
    static = variants(DEMO, SCALES)["static-yarn"].name
    first = [("per-request YaRN", [512]), (static, [512])]
    assert asked == [*first, ("per-request YaRN", [1024]), (static, [1024]), ("ReRoPE, log n", [512, 1024])]
