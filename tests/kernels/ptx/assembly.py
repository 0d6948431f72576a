"""PTX as text, taken apart: parameters, and the statements of a kernel's body with the source that each came from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

_PARAMETER = re.compile(r"\.param \.(\w+)[^\n]*?(\w+_param_\d+)")
_SOURCE = re.compile(r"\s*\.loc\s+\d+ \d+ \d+\s*// (\S+)")
_GUARDED = re.compile(r"@(!?)([%\w]+)\s+(.*)", re.DOTALL)
_PIECES = re.compile(r"(;|(?<=:)\s|^\s*[{}]\s*$)")
_VECTOR_FIRST = re.compile(r"\{[^;]*\}\s*,")


@dataclasses.dataclass(frozen=True)
class Statement:
    """An instruction.

    Attributes:
        guard: the predicate without which it does nothing.
        source: file, line and column.
    """

    opcode: str
    operands: tuple[str, ...]
    guard: str | None
    is_negated: bool
    source: str


@dataclasses.dataclass(frozen=True)
class Label:
    name: str


@dataclasses.dataclass(frozen=True)
class Declaration:
    ptx_type: str
    names: str


@dataclasses.dataclass(frozen=True)
class Brace:
    """Of a block of inline assembly, with names of its own."""

    opens: bool


Part = Statement | Label | Declaration | Brace


def parameters(ptx: str) -> list[tuple[str, str]]:
    """Names and types of a kernel's parameters."""
    return [(name, ptx_type) for ptx_type, name in _PARAMETER.findall(ptx)]


def parts(ptx: str) -> Iterator[Part]:
    """The body of the only kernel, in order."""
    body = ptx[ptx.index("\n{", ptx.index(".entry")) + 2 : ptx.index("// -- End function")]
    source = "?"
    for line in body.split("\n"):
        if found := _SOURCE.match(line):
            source = found[1]
            continue
        for piece in _PIECES.split(line.split("//")[0]):
            text = piece.strip()
            while text.startswith("{") and not _VECTOR_FIRST.match(text):
                yield Brace(opens=True)
                text = text[1:].strip()
            num_closed = text.count("}") - text.count("{")
            text = text.removesuffix("}" * num_closed).strip()
            if text and text != ";":
                yield from _part(text, source)
            yield from [Brace(opens=False)] * num_closed


def operands_of(text: str) -> tuple[str, ...]:
    """What commas part outside of braces and brackets."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return tuple(operand.strip() for operand in found if operand.strip())


def _part(text: str, source: str) -> Iterator[Part]:
    if text.endswith(":"):
        yield Label(text[:-1])
    elif text.startswith(".reg"):
        _, ptx_type, names = text.split(maxsplit=2)
        yield Declaration(ptx_type[1:], names)
    elif not text.startswith("."):
        guarded = _GUARDED.fullmatch(text)
        negation, guard, rest = guarded.groups() if guarded else ("", None, text)
        opcode, _, operands = re.sub(r"\s+", " ", rest, count=1).partition(" ")
        yield Statement(opcode, operands_of(operands), guard, bool(negation), source)
