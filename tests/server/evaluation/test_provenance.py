"""What a report says of how it was made."""

from __future__ import annotations

import re

import pytest

from server.evaluation.result import describe_run


@pytest.mark.parametrize("key", [["--api-key", "secret"], ["--api-key=secret"]], ids=["two-words", "one-word"])
def test_the_command_can_be_pasted_and_has_no_key(key: list[str]) -> None:
    said = describe_run(["eval", "short", *key, "--set", "unscaled:scaling.scales=[1]", "--out", "two words"])
    assert said["command"] == "posenc eval short --set 'unscaled:scaling.scales=[1]' --out 'two words'"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", said["date"])
