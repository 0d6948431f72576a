"""The stored table of vLLM's flags: it says what vLLM's parser says, and counts for the same sources alone."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.settings.arguments import table
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import command_line
from posenc_runtime.vllm_adapter.settings.arguments.flags import Flag, Unlisted, flags_of
from posenc_runtime.vllm_adapter.settings.arguments.parser import parser

FILE = pathlib.Path(table.__file__).parent / "stored" / f"{releases.installed_version()}.json"


@pytest.fixture(autouse=True)
def read_anew() -> None:
    table.read_stored.cache_clear()


@pytest.mark.skipif(not FILE.exists(), reason="no table is stored for this vLLM: its parser is asked")
def test_the_stored_table_is_that_of_vllms_parser() -> None:
    assert table.read_stored() == table.of_actions(parser()[1])


def test_a_table_of_other_sources_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    (tmp_path / "0.0.0.json").write_text(json.dumps({"sources": "others", "flags": {}}))
    monkeypatch.setattr(table, "_STORED", tmp_path)
    assert table.read_stored() is None


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"dtype": "float32", "enforce_eager": True}, ["--dtype", "float32", "--enforce-eager"]),
        ({"max_num_seqs": 4, "seed": None}, ["--max-num-seqs", "4"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
    ],
    ids=["texts", "numbers", "opposite"],
)
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "asked"])
def test_a_command_is_the_same_with_and_without_a_stored_table(
    engine: dict[str, Any], words: list[str], is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_stored:
        monkeypatch.setattr(table, "read_stored", lambda: None)
    command = command_line(model="some/model", served_model_name=None, rope_type="yarn", engine=engine, http={})
    assert command[-len(words) :] == words


def test_where_the_value_decides_vllms_parser_is_asked() -> None:
    flag = Flag("level", ("--level",), None, False, {"bool": False, "int": None, "float": True})
    with pytest.raises(Unlisted):
        list(flags_of("engine.level", flag, 3))
