"""What docs/clients.md shows of clients, against what ``make test-clients`` runs. No client is installed here."""

from __future__ import annotations

import importlib
import json
import pathlib
import re
import sys
from types import ModuleType

import pytest

from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED
from tests.clients import tables
from tests.clients.clients import CLIENTS, PAGE, PROGRAMS, Client
from tests.clients.shown import ADDRESS, KEY, Shown, shown
from tests.pages import table_rows

EVERY_CLIENT = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.folder_name)


@EVERY_CLIENT
def test_every_client_has_an_example_that_asks_the_server_that_runs(client: Client) -> None:
    examples = shown(client)
    assert examples and all(ADDRESS in each.text and KEY in each.text and each.printed for each in examples)


@EVERY_CLIENT
def test_the_page_tells_the_release_that_is_pinned(client: Client) -> None:
    rows = {row[0]: row[1] for row in table_rows(PAGE.read_text(encoding="utf-8")) if len(row) > 3}
    assert rows[client.name] in (pinned(client) if client.asked_for else SUPPORTED)


def pinned(client: Client) -> list[str]:
    if client.is_of_npm:
        lock = json.loads((client.releases / "package-lock.json").read_text(encoding="utf-8"))
        return [lock["packages"][f"node_modules/{client.package}"]["version"]]
    return re.findall(rf"^{client.package}==(\S+)$", client.releases.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    "client",
    [each for each in CLIENTS if each.asked_for and not each.is_of_npm],
    ids=lambda client: client.folder_name,
)
def test_every_package_of_an_environment_is_pinned(client: Client) -> None:
    about, *lines = client.releases.read_text(encoding="utf-8").splitlines()
    assert re.match(r"# .+ on \d{4}-\d\d-\d\d: ", about)
    assert lines and all(re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+", line) for line in lines)


def test_every_program_is_a_clients() -> None:
    assert {file.name for file in PROGRAMS.glob("with_*")} == {client.program for client in CLIENTS if client.program}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2.0", "2.0"),
        ("Failed requests: 0", "Failed requests:        0  "),
        ("| a | ... | 0 |", "| a | 1 | 2 | 0 |"),
    ],
)
def test_what_a_page_shows_is_found_in_what_is_printed(line: str, said: str) -> None:
    assert Shown("console", "$ x", (line,)).missing_from(f"before\n{said}\nafter") == []


@pytest.mark.parametrize("said", ["12.0", "2.00", ""])
def test_another_output_than_the_one_shown_is_missed(said: str) -> None:
    assert Shown("python", "", ("2.0",)).missing_from(said) == ["2.0"]


def test_a_table_says_what_failed_what_was_not_run_and_what_is_dropped() -> None:
    checks = {"answer": None, "stream": "AssertionError", "scale of an answer": None, "also `batch`": None}
    outcome = tables.Outcome("A", "1.0", checks, {"an answer": None})
    assert tables.libraries([outcome]).endswith(
        "| A | 1.0 | yes | FAILED | not run | not run | not run | not run | `batch` |"
    )
    assert tables.places([outcome]).endswith("| A | the client drops it | FAILED |")
    assert outcome.failures == ["A: stream: AssertionError"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> ModuleType:
    """The module with which programs tell what worked; they find it beside them."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    for name, value in (("ADDRESS", ADDRESS), ("KEY", KEY), ("RESULTS", str(tmp_path / "results"))):
        monkeypatch.setenv(f"CLIENT_{name}", value)
    for module in ("asked", "told"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module("told")


class Refused(Exception):
    status_code = 401


def results(folder: pathlib.Path) -> list[str | None]:
    records = [json.loads(line) for line in (folder / "results").read_text().splitlines()]
    return [record["failed"] for record in records if "check" in record]


def test_a_refusal_counts_with_its_exception_its_status_and_its_words(told: ModuleType, tmp_path: pathlib.Path) -> None:
    for status, word, error in ((401, "key", Refused("no key")), (400, "", Refused()), (401, "key", Refused("no"))):
        with told.refused("wrong key", Refused, status, word):
            raise error
    with told.refused("wrong key", Refused, 401):
        pass
    with told.refused("wrong key", Refused, 401):
        raise OSError("no network")
    good, *bad = results(tmp_path)
    assert good is None and [failed is None for failed in bad] == [False] * 4


def test_a_report_that_is_handed_on_does_not_count_as_dropped(told: ModuleType, tmp_path: pathlib.Path) -> None:
    told.dropped("a stream", ["text"])
    told.dropped("a stream", [{"posenc": {"admission_tokens": 503}}])
    assert [failed is None for failed in results(tmp_path)] == [True, False]


def test_a_scale_counts_where_an_expression_gives_it(told: ModuleType, tmp_path: pathlib.Path) -> None:
    crossed = {"scale": 2.0, "crossings": sys.modules["asked"].CROSSINGS}
    told.scale_at("an answer", 'answer["posenc"]', answer={"posenc": crossed})
    told.scale_at("an answer", 'answer["posenc"]', answer={"posenc": crossed | {"scale": 1.0}})
    told.scale_at("an answer", "answer.posenc", answer={})
    assert [failed is None for failed in results(tmp_path)] == [True, False, False]
