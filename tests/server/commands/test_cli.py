"""The command ``posenc``, without an engine: what ``check`` prints, what is refused, and how it ends."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from typer.testing import CliRunner

from posenc_runtime.vllm_adapter.settings.arguments import engine_args
from server.cli import app
from server.deployment import target
from tests.server.command import SCALING, run


def test_check_prints_scales_memory_and_what_requests_would_get(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    status, out, _ = run(
        tmp_path,
        {"model": str(model), "scaling": SCALING, "engine": {"dtype": "float32"}},
        "check", "--tokens", "257", "--tokens", "1025",
    )  # fmt: skip
    assert status == 0
    assert "trained on 256 tokens, serves 1024; yarn at scales 1, 2, 4" in out
    assert "257 to 512 tokens" in out and "1.0693" in out
    # 256 + 512 + 1024 rows of 32 float32 values
    assert "1792 rows of 32 values, 0.22 MiB" in out
    assert "scale 2" in out and "refused: longer than max_model_len 1024" in out


def test_check_prints_the_engines_frequencies_where_the_base_is_the_deployments(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    scaling = {"rope_type": "linear", "scales": [1, 2], "rope_theta": 1e6}
    _, out, _ = run(tmp_path, {"model": str(model), "scaling": scaling}, "check")
    assert f"divided by {2 * 100 ** (30 / 32):.2f}" in out


def test_check_says_that_attention_rotates_where_it_was_asked_to(
    model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: True)
    settings = {"model": str(model), "scaling": SCALING, "attention": {"fused_rotary": "on", "fused_keys": "stock"}}
    status, out, _ = run(tmp_path, settings, "check")
    assert status == 0
    assert "attention: vLLM's own; the kernel that caches keys also rotates queries and keys" in out
    assert "rotary table: none, because attention computes the angles" in out


@pytest.mark.parametrize("size", ["two", 2.5, 0, True])
def test_a_number_of_workers_that_is_none_is_refused_before_anything_is_started(
    size: object, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    settings = {"model": str(model), "scaling": SCALING, "engine": {"tensor_parallel_size": size}}
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings))
    result = CliRunner().invoke(app, ["serve", "--config", str(file)], env={"COLUMNS": "200"})
    rule = "engine.tensor_parallel_size: must be a whole number of at least 1"
    assert (result.exit_code, result.stderr) == (2, f"refused {rule}, got {size!r}\n")


def test_what_looks_like_markup_is_shown_as_it_was_given(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    settings = {"model": str(model), "scaling": SCALING, "server": {"uvicorn_log_level": "[red]x"}}
    assert "'[red]x'" in run(tmp_path, settings, "check")[2]
    settings = {"model": str(model), "scaling": SCALING, "served_model_name": "[red]x"}
    assert "[red]x: trained on" in run(tmp_path, settings, "check")[1]


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"scaling": SCALING | {"beta_fats": 3}}, "refused scaling.beta_fats: is not a known setting, got 3"),
        ({"engine": {"max_num_seq": 3}}, "refused engine.max_num_seq: is not an argument of vLLM, got 3"),
        ({"server": {"apikey": "x"}}, "refused server.apikey: is not an argument of vLLM, got 'x'"),
        (
            {"engine": {"tensor_parallel_size": "2"}},
            "refused engine.tensor_parallel_size: must be a whole number of at",
        ),
        ({"max_model_len": 5000}, "refused scaling.scales must cover max_model_len 5000"),
        ({"attention": {"fused_rotary": "on"}}, "refused attention.fused_rotary: must be auto or off on this device"),
    ],
)
def test_check_refuses_in_one_line_and_exits_with_2(
    settings: dict[str, object],
    rule: str,
    model: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: False)
    status, out, err = run(tmp_path, {"model": str(model), "scaling": SCALING} | settings, "check")
    assert status == 2
    assert rule in err and len(err.strip().splitlines()) == 1 and not out


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(command in result.stdout for command in ("serve", "check", "flags"))


def test_an_interrupt_while_a_file_is_checked_has_a_shells_status(
    model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(target, "load", interrupted)
    assert run(tmp_path, {"model": str(model)}, "check") == (130, "", "")
