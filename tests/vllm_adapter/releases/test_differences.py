"""What older ones of the vLLMs that we know do otherwise: said truly, asked somewhere, and needed by one of them."""

from __future__ import annotations

import pathlib
import re

import pytest

import posenc_runtime
from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.releases.differences import DIFFERENCES, Difference
from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED, as_numbers

PACKAGE = pathlib.Path(posenc_runtime.__file__).parent
RELEASES = PACKAGE / "vllm_adapter" / "releases"
SOURCES = {path: path.read_text() for path in PACKAGE.rglob("*.py")}


def unneeded(differences: dict[str, Difference]) -> list[str]:
    """Those that no version that we know is left to have, or all have: code that only looks as if it chose."""
    return [name for name, each in differences.items() if not 0 < len(each.versions) < len(SUPPORTED)]


def test_every_difference_tells_versions_apart_that_we_know() -> None:
    assert unneeded(DIFFERENCES) == []


def test_a_difference_that_no_version_or_every_one_has_is_found() -> None:
    def of(before: str) -> Difference:
        return Difference(before=before, what="", seen=bool)

    beyond = ".".join(map(str, (*as_numbers(SUPPORTED[-1])[:2], 1)))
    made = {"gone": of(SUPPORTED[0]), "needed": of(SUPPORTED[-1]), "everywhere": of(beyond)}
    assert unneeded(made) == ["gone", "everywhere"]


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_vllm_that_is_installed_does_it_as_its_version_says(name: str) -> None:
    assert DIFFERENCES[name].seen() is DIFFERENCES[name].is_here


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_asked_where_it_matters(name: str) -> None:
    asking = [path for path, source in SOURCES.items() if re.search(rf"\b{name}\.is_here\b", source)]
    assert asking, f"nothing asks {name}: take it out"


def test_versions_are_in_their_order_and_named_nowhere_else() -> None:
    assert list(SUPPORTED) == sorted(SUPPORTED, key=as_numbers)
    naming = re.compile(r"\b(?:" + "|".join(map(re.escape, SUPPORTED)) + r")\b")
    elsewhere = [path for path, source in SOURCES.items() if RELEASES not in path.parents and naming.search(source)]
    assert elsewhere == []


def test_the_parser_of_serves_arguments_is_found() -> None:
    assert {"make_arg_parser", "validate_parsed_serve_args", "FrontendArgs"} <= vars(releases.cli_args()).keys()
