"""A setting that is true or false, said to a parser that spells the opposite of a flag in one of several ways."""

from __future__ import annotations

import argparse

import pytest

from posenc_runtime.vllm_adapter.settings.arguments.flags import Flag, flags_of


def switch(*option_strings: str) -> Flag:
    """A flag, as vLLM's parser has it."""
    action = argparse.BooleanOptionalAction(option_strings[:1], dest="switch")
    action.option_strings = list(option_strings)
    return Flag.of_action(action)


@pytest.mark.parametrize(
    ("options", "yes", "no"),
    [
        (("--enable-x", "--no-enable-x"), "--enable-x", "--no-enable-x"),
        (("--enable-x", "--disable-x"), "--enable-x", "--disable-x"),
        (("--disable-x", "--enable-x"), "--disable-x", "--enable-x"),
        (("-x", "--x", "--no-x"), "--x", "--no-x"),
        (("--enable-x",), "--enable-x", None),
        (("--disable-x",), "--disable-x", None),
    ],
)
def test_what_is_false_is_said_by_the_opposite_of_its_flag(options: tuple[str, ...], yes: str, no: str | None) -> None:
    assert list(flags_of("engine.switch", switch(*options), True)) == [yes]
    assert list(flags_of("engine.switch", switch(*options), False)) == ([] if no is None else [no])
