"""The commands of README and of the start page, run against the demo: answers and metrics are those that are shown."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.benchmarks.servers import Command, running
from tests.pages import DOCS, README, blocks, console_commands, name

START = DOCS / "index.md"

pytestmark = pytest.mark.promise("start page")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The demo's, as `make serve` serves it."""
    serve = (sys.executable, "-m", "server", "serve", "--config", "configs/demo.yaml", "--port", "{port}")
    with running(Command(serve)) as found:
        yield found


def asked(page: pathlib.Path, address: str, path: str) -> str:
    """What the command of a page prints that asks a path of the server."""
    [command] = [each for each in console_commands(page) if f"localhost:8000{path}" in each]
    here = command.replace("localhost:8000", address.removeprefix("http://"))
    return subprocess.run(["bash", "-c", here], capture_output=True, text=True, check=True, timeout=300).stdout


def is_within(shown: Any, whole: Any) -> bool:
    """Whether all that is shown is there; pages leave things out."""
    if isinstance(shown, dict):
        return all(key in whole and is_within(value, whole[key]) for key, value in shown.items())
    if isinstance(shown, list):
        return len(shown) == len(whole) and all(map(is_within, shown, whole))
    return bool(shown == whole)


@pytest.mark.parametrize("page", [README, START], ids=name)
def test_the_first_request_is_answered_as_shown(page: pathlib.Path, address: str) -> None:
    answer = json.loads(asked(page, address, "/v1/chat/completions"))
    assert is_within(json.loads(blocks("json", page=page)[0].text), answer), answer


@pytest.mark.promise("metrics")
def test_the_request_that_crosses_is_answered_and_counted_as_shown(address: str) -> None:
    answer = json.loads(asked(START, address, "/v1/completions"))
    assert is_within(json.loads(blocks("json", page=START)[1].text), answer), answer
    assert is_within(json.loads(blocks("json", page=DOCS / "scales.md")[-1].text), answer), answer
    [counted] = blocks("text", page=START)
    assert counted.text in asked(START, address, "/metrics | grep ^posenc_crossings_total")


def test_the_scales_are_shown_as_json(address: str) -> None:
    assert len(json.loads(asked(START, address, "/posenc/scales"))["scales"]) == 4
