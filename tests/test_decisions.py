"""The records in docs/decisions, their index, and the comments in the code that cite them."""

from __future__ import annotations

import pathlib
import re
from collections import Counter

ROOT = pathlib.Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "decisions"
INDEX = (RECORDS / "index.md").read_text(encoding="utf-8")
TOPICS = {path.name: path.read_text(encoding="utf-8") for path in RECORDS.glob("*.md") if path.name != "index.md"}
LABELS = ("Context.", "Decision.", "What would change our mind.")


def records() -> list[tuple[int, str, str]]:
    """Number, title and topic file of every record."""
    return [
        (int(number), title, topic)
        for topic, text in TOPICS.items()
        for number, title in re.findall(r"^### (\d+)\. (.+)$", text, re.MULTILINE)
    ]


def citations() -> dict[int, list[str]]:
    """Of every number that is cited as a decision, the files of the code that cite it."""
    found: dict[int, list[str]] = {}
    sources = [ROOT / "pyproject.toml"]
    for folder in ("posenc_runtime", "server", "deploy"):
        sources += [path for end in ("py", "h", "cpp") for path in (ROOT / folder).rglob(f"*.{end}")]
    for path in sources:
        for number in re.findall(r"\bDecision (\d+)\b", path.read_text(encoding="utf-8")):
            found.setdefault(int(number), []).append(str(path.relative_to(ROOT)))
    return found


def uncited() -> set[int]:
    """The decisions that the index lists as explaining no code."""
    line = re.search(r"^Not cited in the code: (.+)\.$", INDEX, re.MULTILINE)
    assert line is not None
    return {int(number) for number in re.findall(r"\d+", line[1])}


def test_every_record_has_a_number_of_its_own() -> None:
    repeated = [number for number, times in Counter(number for number, _, _ in records()).items() if times > 1]
    assert repeated == []


def test_the_index_has_a_row_for_every_record_with_its_title_and_topic() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \| \[.+\]\((.+)\) \|$", INDEX, re.MULTILINE)
    assert len(rows) >= 64
    assert sorted((int(number), title, topic) for number, title, topic in rows) == sorted(records())


def test_every_record_has_a_date_and_its_three_paragraphs_in_order() -> None:
    for text in TOPICS.values():
        for record in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
            title, _, body = record.partition("\n")
            assert re.match(r"\n\d{4}-\d\d-\d\d\n\n", body), title
            assert tuple(re.findall(r"^\*\*(.+?)\*\* \S", body, re.MULTILINE)) == LABELS, title


def test_every_decision_that_the_code_or_a_record_cites_exists() -> None:
    known = {number for number, _, _ in records()}
    in_records = {int(number) for text in TOPICS.values() for number in re.findall(r"\bDecision (\d+)\b", text)}
    assert {number: files for number, files in citations().items() if number not in known} == {}
    assert in_records <= known


def test_every_decision_is_cited_by_the_code_unless_the_index_says_otherwise() -> None:
    assert {number for number, _, _ in records()} - citations().keys() == uncited()
