"""Of an engine's errors the terminal gets one line each, unless the engine ends: then its end is told instead."""

from __future__ import annotations

import pytest

from server.start_up import engine_log
from server.start_up.engine_log import EngineLog

ERROR = "(EngineCore pid=7) ERROR 11-26 02:00:21 [core.py:1512]"
TRACEBACK = f"""{ERROR} EngineCore encountered a fatal error.
{ERROR} Traceback (most recent call last):
{ERROR}   File "core.py", line 1496, in run_engine_core
{ERROR} ValueError: why
Process EngineCore:
Traceback (most recent call last):
  File "process.py", line 314, in _bootstrap
    self.run()
ValueError: why
"""


@pytest.fixture
def shown() -> list[str]:
    return []


def test_what_is_no_error_is_shown_at_once(shown: list[str]) -> None:
    log = EngineLog(shown.append)
    log.write("a warn")
    assert shown == []
    log.write("ing\n  of two lines\n")
    assert shown == ["a warning\n", "  of two lines\n"] and log.take() == ""


def test_an_error_is_shown_in_one_line_if_the_engine_goes_on(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_log, "_WAIT_SECONDS", 0.0)
    log = EngineLog(shown.append)
    log.write(TRACEBACK)
    log.show_late()
    assert shown == ["EngineCore: EngineCore encountered a fatal error.\n", "ValueError: why\n"]
    assert log.take() == ""


def test_whoever_tells_of_the_end_of_an_engine_takes_its_errors(shown: list[str]) -> None:
    log = EngineLog(shown.append)
    log.write("a warning\n" + TRACEBACK)
    assert log.take() == "a warning\n" + TRACEBACK
    log.show_late()
    assert shown == ["a warning\n"]


def test_a_long_line_is_cut(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_log, "_WAIT_SECONDS", 0.0)
    EngineLog(shown.append).write(f"{ERROR} {'x' * 1000}\n")
    (line,) = shown
    assert len(line) < 350 and line.endswith(" ...\n")
