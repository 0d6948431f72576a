"""What check says of a deployment that turns queries."""

from __future__ import annotations

import pathlib

import pytest

from tests.checkpoints import save_tiny
from tests.server.command import run

SEEN = "sees at least the last 128 tokens as trained, and all others at most {} tokens away, in pages of 32"


@pytest.mark.parametrize(
    ("leak", "farthest", "ordered"),
    [
        ("none", 158, ""),
        # 128 + (255 - 128) * 4 tokens
        (4, 255, "The pages of the last 636 tokens keep their order"),
        (1e30, 255, "The pages of the last 1,024 tokens keep their order"),
    ],
)
def test_check_says_how_far_away_keys_are_and_which_keep_their_order(
    leak: float | str, farthest: int, ordered: str, tmp_path: pathlib.Path
) -> None:
    scaling = {"rope_type": "rerope", "leak": leak}
    settings = {"model": str(save_tiny(tmp_path / "model")), "max_model_len": 1024, "scaling": scaling}
    status, out, err = run(tmp_path, settings | {"engine": {"block_size": 32, "dtype": "float32"}}, "check")
    assert status == 0, err
    said = " ".join(out.split())
    assert SEEN.format(farthest) in said
    assert ("keep their order" in said) == bool(ordered) and ordered in said


def test_check_says_what_a_request_of_a_length_gets(tmp_path: pathlib.Path) -> None:
    settings = {"model": str(save_tiny(tmp_path / "model")), "max_model_len": 1024, "scaling": {"rope_type": "rerope"}}
    engine = {"engine": {"block_size": 32, "dtype": "float32"}}
    status, out, err = run(tmp_path, settings | engine, "check")
    assert status == 0, err
    assert [line.split(" │ ") for line in rows(out)] == [
        ["128", "none: stock vLLM's answer"],
        ["256", "none: stock vLLM's answer"],
        ["257", "the last token"],
        ["1024", "the last 768 tokens"],
        ["1025", "refused: longer than max_model_len 1024"],
    ]
    assert "rotary table: 1024 rows of" in out
    _, out, _ = run(tmp_path, settings | engine, "check", "--tokens", "300")
    assert [line.split(" │ ") for line in rows(out)] == [["300", "the last 44 tokens"]]


def rows(table: str) -> list[str]:
    """The rows of a table in a terminal, without its edges."""
    return [" ".join(line.strip("│ ").split()) for line in table.splitlines() if line.startswith("│")]
