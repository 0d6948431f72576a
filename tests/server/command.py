"""A command of ``posenc`` over a file of settings, in this process."""

from __future__ import annotations

import pathlib

import yaml
from typer.testing import CliRunner

from server.cli import app

SCALING = {"rope_type": "yarn", "scales": [1, 2, 4]}


def run(folder: pathlib.Path, settings: dict[str, object], *arguments: str) -> tuple[int, str, str]:
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings))
    command, *options = arguments
    result = CliRunner().invoke(app, [command, str(file), *options], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr
