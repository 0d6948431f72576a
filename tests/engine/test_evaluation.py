"""``posenc eval text`` on servers of the demo: intact, with broken crossings, and of stock vLLM."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from server.cli import app
from server.deployment import shipped
from server.deployment.load import load
from server.printing import terminal
from tests.benchmarks.servers import running
from tests.benchmarks.variants import Checkpoint, command, variants
from tests.engine import breakable_crossings
from tests.engine.running_server import running_server

BOOK = pathlib.Path(__file__).parents[2] / "docs"
DEMO = pathlib.Path(str(shipped.path_of("demo")))
WINDOW = 512
_SMALL = {"max_model_len": 1024, "engine": {"kv_cache_memory_bytes": 2**27, "max_num_seqs": 8}}


def evaluated(out: pathlib.Path, *more: str) -> str:
    """What the command printed."""
    terminal.console.cache_clear()
    asked = ["--text", str(BOOK), "--out", str(out), "--samples", "16", "--length", "600", "--concurrency", "8", *more]
    result = CliRunner().invoke(app, ["eval", "text", *asked], env={"COLUMNS": "200"})
    terminal.console.cache_clear()
    assert result.exit_code == 0, result.stderr
    return result.stdout


def rows(out: pathlib.Path, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "results.json").read_text())["decoded"][kind]
    return found


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The file that breaks crossings while it exists."""
    return tmp_path_factory.mktemp("fault") / "broken"


@pytest.fixture(scope="module")
def address(breaking: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings: dict[str, Any] = yaml.safe_load(DEMO.read_text()) | _SMALL
    settings["engine"] |= {"dtype": "float32", "enforce_eager": True, "block_size": 32}
    settings["engine"]["logits_processors"] = [breakable_crossings.LOADED]
    # The installed command does not import from its working directory; vLLM's worker imports a module of the tests.
    environment = {breakable_crossings.FILE: str(breaking), "PYTHONPATH": str(BOOK.parent)}
    with running_server(tmp_path_factory.mktemp("server"), settings, environment, imported=True) as address:
        yield address


def test_decoding_shows_broken_crossings_and_nothing_where_they_are_right(
    address: str, breaking: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "out"
    said = evaluated(out, "--target", f"intact={address}")
    assert "intact: 16 of 16 decoded pieces crossed to another scale, at 512 tokens." in said
    breaking.touch()
    evaluated(out, "--target", f"intact={address}", "--target", f"broken={address}")
    breaking.unlink()
    differences = {row["from"]: row for row in rows(out, "difference")}
    assert sorted(differences) == [448, 480, WINDOW, 544]
    for begin, row in differences.items():
        if begin < WINDOW:
            assert row["broken"]["value"] == pytest.approx(row["intact"]["value"], abs=1e-3)
    # The block that begins at the crossing is rotated at the old scale; those after it are right again.
    assert differences[WINDOW]["broken"]["value"] < -0.5 and differences[WINDOW]["broken"]["high"] < -0.2
    assert abs(differences[WINDOW]["intact"]["value"]) < 0.1


@pytest.mark.release
def test_stock_vllm_is_measured_in_one_pass_as_it_is(tmp_path: pathlib.Path) -> None:
    settings = load(DEMO)
    static = variants(Checkpoint.of(settings), settings.scaling.scales)["static-yarn"]
    with running(command(static, DEMO, [], settings, 1024)) as address:
        said = evaluated(tmp_path / "out", "--target", f"stock={address}")
    assert "stock: decoding was not measured, because this server cannot be told what to say" in said
    one_pass = json.loads((tmp_path / "out" / "results.json").read_text())["one_pass"]["600"]
    assert all(-12 < row["stock"]["value"] < -1 and row["stock"]["samples"] == 16 for row in one_pass)
