"""vLLM's own parser, whose refusals name settings of our file."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, NoReturn

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused


def parser() -> tuple[Any, dict[str, dict[str, argparse.Action]]]:
    """vLLM's parser, and its actions by argument name, for each of our sections ``engine`` and ``server``."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ArgumentRefused(_as_setting(message, http_names))

    http_names = {field.name for field in dataclasses.fields(releases.cli_args().FrontendArgs)}
    engine_names = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    made = releases.cli_args().make_arg_parser(Parser())
    actions = {action.dest: action for action in made._actions if action.option_strings}
    return made, {
        "engine": {name: action for name, action in actions.items() if name in engine_names},
        "server": {name: action for name, action in actions.items() if name in http_names},
    }


def _as_setting(message: str, http_names: set[str]) -> str:
    """Reword argparse's "argument --max-num-seqs: invalid int value: 'x'": name the setting as our file does."""
    if not message.startswith("argument "):
        return f"engine: {message}"
    options, _, rule = message.removeprefix("argument ").partition(":")
    name = next(option for option in options.split("/") if option.startswith("--")).removeprefix("--").replace("-", "_")
    return f"{'server' if name in http_names else 'engine'}.{name}:{rule}"
