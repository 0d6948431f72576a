"""The plan of a start, which one command runs and the others print."""

from __future__ import annotations

import argparse
import json
import pathlib
from types import SimpleNamespace
from typing import Literal

import pytest

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.in_server.request_log import Format
from posenc_runtime.vllm_adapter.settings.section import ScalingSettings
from server.app import plugin
from server.deployment.settings import Settings
from server.start_up import starting
from server.start_up.planning import command, plan_settings, serve_namespace
from tests.checkpoints import save_tiny
from tests.server.command import run


@pytest.mark.parametrize(
    ("longest", "said", "reason"),
    [
        (
            None,
            -1,
            "auto: the checkpoint's own rope_type is default, for which it takes yarn, and rerope only by name, "
            "because it was measured with two small models; requests may be as long as the cache has room for",
        ),
        (
            700,
            700,
            "auto: the checkpoint's own rope_type is default, for which it takes yarn, and rerope only by name, "
            "because it was measured with two small models, max_model_len is 700, and the trained length 256",
        ),
    ],
    ids=["no length is given", "a length is given"],
)
def test_the_command_of_plain_vllm_says_every_argument_that_serve_has(
    longest: int | None, said: int, reason: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    monkeypatch.setattr(releases, "has_command", lambda: True)
    model = str(save_tiny(tmp_path / "tiny"))
    settings = Settings(
        model=model,
        served_model_name="tiny",
        max_model_len=longest,
        scaling=ScalingSettings(rope_type="auto"),
        engine={"max_num_seqs": 3},
        log_requests="off",
    )
    plan, arguments = plan_settings(settings), vars(serve_namespace(settings, quiet=False))
    assert (plan.max_model_len, plan.remarks) == (said, (reason,))
    assert plan.deployment.max_model_len == (longest or 1024)
    assert arguments["max_model_len"] == longest
    assert arguments["additional_config"]["posenc"] == {"rope_type": "auto"}
    assert arguments.pop(plugin.REQUEST_LOG) == "off"
    parser = releases.cli_args().make_arg_parser(FlexibleArgumentParser())
    *vllm_serve, named = command(settings)[:3]
    assert (vllm_serve, named) == (["vllm", "serve"], model)
    assert vars(parser.parse_args(["--model", model, *command(settings)[3:]])) == arguments


@pytest.mark.parametrize(
    ("window", "scaling", "remarks"),
    [
        (
            64,
            {"rope_type": "yarn", "scales": [1, 4]},
            [
                "scaling: no layer that rotates sees more than 64 tokens, however long a request is, so no request "
                "needs a scale above 1: leave scales out, and set rope_type to auto"
            ],
        ),
        (64, {"rope_type": "yarn"}, []),
        (None, {"rope_type": "yarn", "scales": [1, 4]}, []),
    ],
    ids=["scales that are not needed", "one scale", "layers see all"],
)
def test_scales_that_no_request_needs_are_served_and_said(
    window: int | None, scaling: dict[str, object], remarks: list[str], tmp_path: pathlib.Path
) -> None:
    model = str(save_tiny(tmp_path / "tiny", "mistral", sliding_window=window))
    settings = Settings(model=model, scaling=ScalingSettings.model_validate(scaling))
    plan = plan_settings(settings)
    assert (list(plan.deployment.scales), [*plan.remarks]) == (scaling.get("scales", [1]), remarks)


@pytest.mark.parametrize(("prefix_reuse", "is_said"), [("rerotate", True), ("exact", False)])
def test_what_reuse_by_rotation_costs_conversations_is_said(
    prefix_reuse: str, is_said: bool, tmp_path: pathlib.Path
) -> None:
    scaling = {"rope_type": "yarn", "scales": [1, 2], "prefix_reuse": prefix_reuse}
    settings = Settings(model=str(save_tiny(tmp_path / "tiny")), scaling=ScalingSettings.model_validate(scaling))
    said = [each for each in plan_settings(settings).remarks if each.startswith("scaling.prefix_reuse: ")]
    assert len(said) == is_said


@pytest.mark.parametrize(
    ("log_format", "log_requests", "of_requests", "of_vllm"),
    [
        ("text", "text", "text", "text"),
        ("json", "text", "json", "json"),
        ("json", "off", "off", "json"),
        ("text", "json", "json", "text"),
    ],
)
def test_logs_as_json_are_so_for_requests_and_for_vllm(
    log_format: Literal["text", "json"],
    log_requests: Format,
    of_requests: str,
    of_vllm: str,
    tmp_path: pathlib.Path,
) -> None:
    model = str(save_tiny(tmp_path / "tiny"))
    settings = Settings(
        model=model, scaling=ScalingSettings(rope_type="auto"), log_format=log_format, log_requests=log_requests
    )
    arguments = serve_namespace(settings)
    assert getattr(arguments, plugin.REQUEST_LOG) == of_requests
    config = getattr(arguments, "logging_config", None)
    formatter = config.get("formatter") if isinstance(config, dict) else getattr(config, "formatter", "text")
    assert formatter == of_vllm


@pytest.mark.parametrize(
    ("enabled", "config", "expected"),
    [
        (False, {"formatter": "json"}, "off"),
        (True, {"formatter": "json"}, "json"),
        (True, SimpleNamespace(formatter="json"), "json"),
        (True, {}, "text"),
        (True, None, "text"),
    ],
)
def test_plain_vllm_logs_requests_as_its_own_log(enabled: bool, config: object, expected: str) -> None:
    args = argparse.Namespace(enable_log_requests=enabled, logging_config=config)
    assert plugin._of_vllm(args) == expected


def test_a_model_in_an_object_store_is_planned_from_the_settings_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is fetched: vLLM reads its configuration with the weights."""

    def configured(*_: object, **__: object) -> None:
        raise AssertionError("vLLM's configuration is made")

    monkeypatch.setattr(starting, "configure", configured)
    scaling = {"rope_type": "yarn", "scales": [1, 2], "original_max_position_embeddings": 256}
    status, out, err = run(tmp_path, {"model": "s3://bucket/model", "scaling": scaling}, "check")
    assert status == 0 and "trained on 256 tokens, serves 512" in out
    assert "posenc cannot read an object store" in " ".join(err.split())


@pytest.mark.parametrize("rope_type", ["rerope", "yarn"])
def test_the_command_has_the_connector_of_the_settings(rope_type: str) -> None:
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
    settings = Settings(
        model="some/model", scaling=ScalingSettings(rope_type=rope_type), engine={"kv_transfer_config": transfer}
    )
    words = command(settings)
    assert json.loads(words[words.index("--kv-transfer-config") + 1]) == transfer
