"""What the flags of vLLM's arguments look like, stored for releases: to make vLLM's own parser takes seconds.

``python -m posenc_runtime.vllm_adapter.settings.arguments.table`` stores the table of the vLLM that is installed.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from posenc_runtime.vllm_adapter.settings.arguments.flags import Flag

_STORED = pathlib.Path(__file__).parent / "stored"
# Sources that vLLM's parser is made of; a file that a release lacks counts as empty.
_SOURCES = (
    *("engine/arg_utils.py", "entrypoints/common/cli_args.py", "entrypoints/launchers/cli_args.py"),
    *("entrypoints/openai/cli_args.py", "config/*.py"),
)

Table = dict[str, dict[str, Flag]]


@functools.cache
def read_stored() -> Table | None:
    """Flags by argument name, for each of our sections ``engine`` and ``server``.

    None where no table was stored for a vLLM whose parser has the same sources as the installed one.
    """
    digest = _digest()
    for file in sorted(_STORED.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["sources"] == digest:
            return {
                section: {name: Flag.of_mapping(said) for name, said in flags.items()}
                for section, flags in content["flags"].items()
            }
    return None


def of_actions(actions: Mapping[str, Mapping[str, argparse.Action]]) -> Table:
    """The table of a parser's actions, by section and argument name."""
    return {
        section: {name: Flag.of_action(action) for name, action in of_section.items()}
        for section, of_section in actions.items()
    }


def as_json(table: Table) -> str:
    """The text of a stored table, for the installed vLLM."""
    said = {section: {name: flag.to_mapping() for name, flag in flags.items()} for section, flags in table.items()}
    lines = [f'{{\n"sources": "{_digest()}",\n"flags": {{']
    lines.append(",\n".join(_section_lines(name, flags) for name, flags in said.items()))
    return "\n".join([*lines, "}}\n"])


def _section_lines(name: str, flags: Mapping[str, Any]) -> str:
    return f'"{name}": {{\n' + ",\n".join(f'"{each}": {json.dumps(said)}' for each, said in flags.items()) + "\n}"


def _digest() -> str:
    """Of the sources of vLLM's parser."""
    found = hashlib.sha256()
    for name, content in _contents():
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _contents() -> Iterator[tuple[str, bytes]]:
    spec = importlib.util.find_spec("vllm")
    for folder in map(pathlib.Path, (spec and spec.submodule_search_locations) or ()):
        for pattern in _SOURCES:
            for file in sorted(folder.glob(pattern)):
                yield file.relative_to(folder).as_posix(), file.read_bytes()


def _store() -> None:
    from posenc_runtime.vllm_adapter import releases
    from posenc_runtime.vllm_adapter.settings.arguments.parser import parser

    file = _STORED / f"{releases.installed_version()}.json"
    file.write_text(as_json(of_actions(parser()[1])), encoding="utf-8")
    print(file)


if __name__ == "__main__":
    _store()
