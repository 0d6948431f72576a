"""Texts from files, and pieces of them."""

from __future__ import annotations

import gzip
import pathlib

import pytest

from server.evaluation import EvaluationRefused, texts


def test_a_folder_gives_its_texts_in_the_order_of_their_names(tmp_path: pathlib.Path) -> None:
    (tmp_path / "b.md").write_text("second\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("first")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"third"))
    (tmp_path / "d.png").write_bytes(b"\xff\xfe")
    assert texts.read(tmp_path) == "first\n\nsecond\n\nthird"


def test_html_gives_what_a_page_shows(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<html><head><title>No</title><style>p {}</style></head><body><h1>A &amp; B</h1>"
        "<p>one\n  <b>two</b></p><script>no()</script><pre>x\n  y</pre></body></html>"
    )
    assert texts.read(page).strip() == "A & B\n\none two\n\nx\n y"


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_what_has_no_text_is_refused(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.bin").write_bytes(b"x")
    with pytest.raises(EvaluationRefused, match=rf"^--text: \S+{name} "):
        texts.read(tmp_path / name)


def test_pieces_do_not_overlap_and_follow_the_seed() -> None:
    ids = list(range(1003))
    found = texts.pieces(ids, 100, 10, seed=1)
    assert sorted(each for piece in found for each in piece) == list(range(1, 1001))
    assert all(piece == list(range(piece[0], piece[0] + 100)) for piece in found)
    assert found == texts.pieces(ids, 100, 10, seed=1) != texts.pieces(ids, 100, 10, seed=2)


def test_a_text_that_is_too_short_is_refused_with_what_would_do() -> None:
    with pytest.raises(
        EvaluationRefused, match=r"need 400 tokens, but the text has 350: give more text, or --samples 3$"
    ):
        texts.pieces(list(range(350)), 100, 4, seed=0)
    with pytest.raises(EvaluationRefused, match=r"--samples 1 and a smaller --length$"):
        texts.pieces(list(range(50)), 100, 4, seed=0)
