"""The page with every architecture, against the sources of the installed vLLM, and against two releases made up."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import pytest

from posenc_runtime.vllm_adapter.checkpoint.model_code import architecture_page, architecture_tables
from posenc_runtime.vllm_adapter.checkpoint.model_code.architecture_tables import Group, Release
from posenc_runtime.vllm_adapter.checkpoint.model_code.verdicts import Verdict
from posenc_runtime.vllm_adapter.releases import versions
from tests.pages import DOCS

PAGE = (DOCS / "architectures.md").read_text(encoding="utf-8")


def rows(page: str, version: str) -> Iterator[tuple[str, str, str, str]]:
    """Group, architecture, crossings and reason of each row that holds for a release."""
    for part in page.split("\n## ")[2:]:
        group, _, table = part.partition("\n")
        for line in re.findall(r"^\| `.*$", table, re.MULTILINE):
            name, of, crossings, reason = (cell.strip() for cell in line.removesuffix("|").split("|")[1:])
            if not of or version in of.split(", "):
                yield group, name.strip("`"), crossings, reason


def coverage(page: str, version: str) -> list[str]:
    return re.findall(rf"^\| {re.escape(version)} \|.*$", page, re.MULTILINE)


def test_the_page_is_about_every_release_that_is_supported() -> None:
    *others, last = versions.SUPPORTED
    assert f"from the sources of vLLM {', '.join(others)} and {last}." in PAGE


@pytest.mark.slow
@pytest.mark.release
def test_the_page_says_of_the_installed_vllm_what_its_sources_say() -> None:
    here = versions.installed_version()
    written = architecture_page.page([Release.of_this_process()])
    assert list(rows(PAGE, here)) == list(rows(written, here))
    assert coverage(PAGE, here) == coverage(written, here)
    above, _, _ = PAGE.partition("\n## Coverage")
    assert above.replace(f"{', '.join(versions.SUPPORTED[:-1])} and {versions.SUPPORTED[-1]}", here) in written


OLD = Release("0.9.0", [Group("Text", {"A": Verdict("rerotate"), "B": Verdict("pin"), "C": Verdict("refused", "old")})])
NEW = Release(
    "0.10.0", [Group("Text", {"A": Verdict("rerotate"), "C": Verdict("refused", "new"), "D": Verdict("pin")})]
)


def test_a_row_names_releases_only_where_they_differ() -> None:
    page = architecture_page.page([NEW, OLD])
    assert "sources of vLLM 0.9.0 and 0.10.0." in page
    assert [line for line in page.splitlines() if line.startswith("| `")] == [
        "| `A` |  | `rerotate`, `recompute`, `pin` |  |",
        "| `B` | 0.9.0 | `pin` |  |",
        "| `D` | 0.10.0 | `pin` |  |",
        "| `C` | 0.9.0 | refused | old |",
        "| `C` | 0.10.0 | refused | new |",
    ]
    assert coverage(page, "0.10.0") == ["| 0.10.0 | Text | 3 | 2 | 1 | 0 | 0 | 1 |"]


def test_a_release_that_another_process_has_read_is_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def line_of_sources(folder: pathlib.Path, device: str, module: str, *arguments: str, mark: str) -> str:
        asked.extend((str(folder), device, module, *arguments))
        return OLD.line().removeprefix(mark)

    monkeypatch.setattr(architecture_tables, "line_of_sources", line_of_sources)
    assert Release.of_sources(tmp_path, "cpu") == OLD
    assert asked == [str(tmp_path), "cpu", "posenc_runtime.vllm_adapter.checkpoint.model_code", "--release"]


def test_a_folder_without_a_vllm_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"must contain vllm/_version\.py, got"):
        Release.of_sources(tmp_path, "cpu")
