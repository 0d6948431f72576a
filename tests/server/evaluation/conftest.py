from __future__ import annotations

import pathlib
import random
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.printing import terminal
from tests.checkpoints import save_weights

WINDOW = 64


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a tokenizer of bytes, whose model was trained (it says) on 64 tokens."""
    folder = tmp_path_factory.mktemp("evaluated") / "model"
    return save_weights(folder, {"model_type": "llama", "max_position_embeddings": WINDOW}, {})


@pytest.fixture
def book(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with 40,000 bytes of text."""
    folder = tmp_path / "book"
    folder.mkdir()
    drawn = random.Random(3)
    (folder / "chapter.txt").write_text("".join(drawn.choices("abcdefgh ,.", k=40_000)))
    return folder


@pytest.fixture
def evaluate() -> Callable[..., tuple[int, str, str]]:
    """Runs ``posenc eval`` in this process: exit status, stdout and stderr."""

    def run(*arguments: object, **environment: str) -> tuple[int, str, str]:
        terminal.console.cache_clear()  # it holds the streams of an earlier test
        told = {"COLUMNS": "200", "OPENAI_API_KEY": "", **environment}
        result = CliRunner().invoke(app, ["eval", *map(str, arguments)], env=told)
        terminal.console.cache_clear()
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return run
