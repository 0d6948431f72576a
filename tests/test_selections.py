"""Which tests each verb of the Makefile runs."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import subprocess

import pytest

from tests.engine.promises import PROMISES

ROOT = pathlib.Path(__file__).parents[1]
MARKERS = ("engine", "slow", "compiled", "promise")


def selections(verb: str) -> list[str]:
    """pytest's ``-m`` expressions, in the order in which a verb runs them."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
    dry_run = ["make", "--dry-run", "--no-print-directory", verb]
    printed = subprocess.run(dry_run, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    return [quoted or word for quoted, word in re.findall(r'-m pytest .*?-m (?:"([^"]+)"|(\w+))', printed)]


def test_all_runs_first_what_make_test_runs_and_then_each_other_test_once() -> None:
    usual, everything = selections("test"), selections("test-all")
    assert len(usual) == 2 and everything[:2] == usual
    for values in itertools.product((False, True), repeat=len(MARKERS)):
        marked = dict(zip(MARKERS, values, strict=True))
        if marked["engine"] + marked["slow"] + marked["compiled"] > 1:
            continue  # these exclude each other
        assert [eval(expression, {}, marked) for expression in everything].count(True) == 1, marked


def test_what_must_pass_before_a_change_goes_in_is_the_check_and_every_test() -> None:
    verbs = re.findall(r"^[^#\n]*\bmake (?:-k )?([\w-]+)", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert verbs == ["setup", "tools", "check", "test-all"]


class Chosen:
    """The tests of a selection by the promises that they hold."""

    def __init__(self) -> None:
        self.by_promise: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("promise"):
                for name in mark.args:
                    self.by_promise.setdefault(name, []).append(item.nodeid)


def test_make_test_has_an_engine_test_for_each_promise_of_the_docs() -> None:
    chosen = Chosen()
    quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--rootdir", str(ROOT)]
    (selection,) = (each for each in selections("test") if "promise" in each.split("not")[0])
    status = pytest.main(["--collect-only", *quiet, "-m", selection, str(ROOT / "tests" / "engine")], plugins=[chosen])
    assert status == pytest.ExitCode.OK
    assert set(PROMISES) - set(chosen.by_promise) == set(), "no test that make test runs holds these"
    assert set(chosen.by_promise) - set(PROMISES) == set(), "these stand on no page: tests/engine/promises.py"


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_is_made_on_its_page(name: str) -> None:
    promise = PROMISES[name]
    assert promise.words in " ".join((ROOT / promise.page).read_text(encoding="utf-8").split())
