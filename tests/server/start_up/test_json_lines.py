"""Lines as JSON, for programs that collect logs."""

from __future__ import annotations

import datetime
import io
import json

from rich.console import Console

from server.start_up.json_lines import JsonLines


def written(*texts: str) -> list[dict[str, object]]:
    out = io.StringIO()
    lines = JsonLines(out)
    for text in texts:
        assert lines.write(text) == len(text)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_each_whole_line_is_an_object() -> None:
    first, second = written("one\nt", "wo\n", "\n", "not yet whole")
    assert (first["message"], second["message"]) == ("one", "two")
    assert (first["level"], first["logger"]) == ("INFO", "posenc")
    time = datetime.datetime.fromisoformat(str(first["time"]))
    assert abs(datetime.datetime.now(datetime.UTC) - time) < datetime.timedelta(hours=1)


def test_a_line_that_is_an_object_adds_its_keys() -> None:
    (line,) = written('{"request_id": "cmpl-1", "scale": 2.0}\n')
    assert (line["request_id"], line["scale"], line["level"]) == ("cmpl-1", 2.0, "INFO")
    assert "message" not in line


def test_what_only_begins_like_an_object_is_a_message() -> None:
    (line,) = written("{so it begins}\n")
    assert line["message"] == "{so it begins}"


def test_a_console_that_writes_to_it_has_no_colours_and_does_not_wrap() -> None:
    out = io.StringIO()
    Console(file=JsonLines(out), soft_wrap=True).print(f"[bold]model[/]: {'long ' * 50}")
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["message"] == f"model: {'long ' * 50}".strip()
