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
MARKERS = ("engine", "slow", "compiled", "promise", "release")


def selections(verb: str) -> list[str]:
    """pytest's ``-m`` expressions, in the order in which a verb runs them."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
    dry_run = ["make", "--dry-run", "--no-print-directory", verb]
    printed = subprocess.run(dry_run, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    return [quoted or word for quoted, word in re.findall(r'-m pytest .*?-m (?:"([^"]+)"|(\w+))', printed)]


def test_all_and_a_release_run_each_test_once_and_all_has_those_of_make_test() -> None:
    usual, everything, release = selections("test"), selections("test-all"), selections("test-release")
    assert len(usual) == 2 and everything[0] == usual[0] and release == ["release"]
    for values in itertools.product((False, True), repeat=len(MARKERS)):
        marked = dict(zip(MARKERS, values, strict=True))
        if marked["engine"] + marked["slow"] + marked["compiled"] > 1:
            continue  # they exclude each other
        if marked["release"] and not (marked["engine"] or marked["slow"]):
            continue  # no quick test waits for a release
        assert [eval(expression, {}, marked) for expression in everything + release].count(True) == 1, marked
        if any(eval(expression, {}, marked) for expression in usual) and not marked["release"]:
            assert any(eval(expression, {}, marked) for expression in everything), marked


def test_what_must_pass_before_a_change_goes_in_is_the_check_and_every_test() -> None:
    verbs = re.findall(r"^[^#\n]*\bmake (?:-k )?([\w-]+)", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert verbs == ["setup", "tools", "check", "test-all"]


class Chosen:
    """The tests of a selection by the promises that they hold."""

    def __init__(self) -> None:
        self.by_promise: dict[str, list[str]] = {}
        self.waiting: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("promise"):
                for name in mark.args:
                    self.by_promise.setdefault(name, []).append(item.nodeid)
                if item.get_closest_marker("release"):
                    self.waiting.append(item.nodeid)


def test_make_test_has_an_engine_test_for_each_promise_of_the_docs() -> None:
    chosen = Chosen()
    quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--rootdir", str(ROOT)]
    (selection,) = (each for each in selections("test") if "promise" in each.split("not")[0])
    status = pytest.main(["--collect-only", *quiet, "-m", selection, str(ROOT / "tests" / "engine")], plugins=[chosen])
    assert status == pytest.ExitCode.OK
    assert set(PROMISES) - set(chosen.by_promise) == set(), "no test that make test runs holds these"
    assert chosen.waiting == [], "a promise is tested before each change, not before a release alone"
    assert set(chosen.by_promise) - set(PROMISES) == set(), "these stand on no page: tests/engine/promises.py"


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_is_made_on_its_page(name: str) -> None:
    promise = PROMISES[name]
    assert promise.words in " ".join((ROOT / promise.page).read_text(encoding="utf-8").split())
