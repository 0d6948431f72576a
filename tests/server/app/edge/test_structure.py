"""Counting a JSON text while it arrives."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_runtime.vllm_adapter.settings.front_end import LimitSettings
from server.app.edge import structure
from server.app.edge.error_answers import RequestRefused
from server.app.edge.structure import Structure

TEXTS = st.text(alphabet='abu"\\[]{},:é\U0001f600\n')
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=30
)


def counted(text: bytes, pieces: list[int] | None = None, **limits: int) -> Structure:
    found = Structure(LimitSettings(**limits))
    for length in pieces or [len(text)]:
        found.feed(text[:length])
        text = text[length:]
    found.feed(text)
    found.end()
    return found


def by_hand(value: Any) -> tuple[int, int, int]:
    """Depth, parts and values of a parsed value, one by one."""
    if not isinstance(value, list | dict):
        return 0, int(isinstance(value, str)), 0
    inner = [by_hand(each) for each in (value.values() if isinstance(value, dict) else value)]
    return (
        1 + max((depth for depth, _, _ in inner), default=0),
        2 + sum(parts for _, parts, _ in inner) + (len(value) if isinstance(value, dict) else 0),
        1 + sum(values for _, _, values in inner) + max(len(value) - 1, 0),
    )


@settings(max_examples=300, deadline=None)
@given(VALUES, st.booleans(), st.lists(st.integers(0, 7), max_size=40), st.sampled_from([1, 2, 5, 2**16]))
def test_counts_are_those_of_the_parsed_value_however_the_text_arrives(
    value: Any, is_ascii: bool, pieces: list[int], piece_bytes: int
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "_PIECE_BYTES", piece_bytes)
        found = counted(text, pieces)
    assert (found.depth, found.parts, found.values) == by_hand(value)
    of_six_bytes = re.findall(rb"\\.", text).count(rb"\u")
    assert found.escapes == text.count(b"\\") + 2 * of_six_bytes + sum(byte >= 0x80 for byte in text)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        (b"[" * 101 + b"]" * 101, "max_depth"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "max_depth"),
        (b"[" * 200_000, "max_depth"),
        (b"[" + b"{}," * 37_500 + b"{}]", "max_parts"),
        (b"{" + b",".join(b'"%d":1' % key for key in range(75_001)) + b"}", "max_parts"),
        (b"[" + b'"",' * 75_000 + b'""]', "max_parts"),
        (b"[" + b"1," * 1_100_000 + b"1]", "max_values"),
        (b'["' + b"\\n" * (2**23 + 1) + b'"]', "max_escapes"),
        (b'["' + b"\\u00e9" * (2**23 // 3 + 1) + b'"]', "max_escapes"),
        (('["' + "é" * (2**22 + 1) + '"]').encode(), "max_escapes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_text_with_too_much_is_refused_naming_the_setting(text: bytes, setting: str) -> None:
    with pytest.raises(RequestRefused, match=rf"limits\.{setting}\), got \d+ or more") as refused:
        counted(text)
    assert refused.value.reason == setting


def test_brackets_and_commas_within_strings_count_for_nothing() -> None:
    code = json.dumps({"prompt": '{"[' * 200_000 + "\\" * 4001 + '",' * 100}).encode()
    assert (counted(code).depth, counted(code).parts) == (1, 4)


def test_it_is_refused_before_the_rest_arrives() -> None:
    found = Structure(LimitSettings())
    with pytest.raises(RequestRefused):
        for _ in range(1000):
            found.feed(b"[" * 2**12)
