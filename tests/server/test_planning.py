"""The plan of a start, which one command runs and the others print."""

from __future__ import annotations

import pathlib

import pytest

from posenc_runtime.vllm_adapter import compat
from posenc_runtime.vllm_adapter.settings.section import ScalingSettings
from server import plugin
from server.checkpoint import checkpoint_of
from server.planning import planned
from server.settings import Settings
from tests.checkpoints import save_tiny


@pytest.mark.parametrize(
    ("longest", "said", "reason"),
    [
        (
            None,
            -1,
            "auto: the checkpoint's own rotation is not scaled; requests may be as long as the cache has room for",
        ),
        (
            700,
            700,
            "auto: the checkpoint's own rotation is not scaled, max_model_len is 700, and the trained length 256",
        ),
    ],
    ids=["no length is given", "a length is given"],
)
def test_the_command_of_plain_vllm_says_every_argument_that_serve_has(
    longest: int | None, said: int, reason: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    monkeypatch.setattr(compat, "has_command", lambda: True)
    model = str(save_tiny(tmp_path / "tiny"))
    settings = Settings(
        model=model,
        served_model_name="tiny",
        max_model_len=longest,
        scaling=ScalingSettings(rope_type="auto"),
        engine={"max_num_seqs": 3},
        log_requests="off",
    )
    plan = planned(settings, checkpoint_of(settings))
    arguments = vars(plan.arguments(quiet=False))
    assert (arguments["max_model_len"], plan.remarks) == (said, (reason,))
    assert arguments["additional_config"]["posenc"]["max_model_len"] == (longest or 1024)
    assert arguments.pop(plugin.REQUEST_LOG) == "off"
    parser = compat.cli_args().make_arg_parser(FlexibleArgumentParser())
    *vllm_serve, named = plan.command()[:3]
    assert (vllm_serve, named) == (["vllm", "serve"], model)
    printed = vars(parser.parse_args(["--model", model, *plan.command()[3:]]))
    # vLLM draws an id for each engine.
    printed["kv_transfer_config"].engine_id = arguments["kv_transfer_config"].engine_id
    assert printed == arguments


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
    plan = planned(settings, checkpoint_of(settings))
    assert (list(plan.deployment.scales), [*plan.remarks]) == (scaling.get("scales", [1]), remarks)
