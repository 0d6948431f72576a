"""What a set-up shows while it runs: one line per step, with what uv or pip is doing right now.

Its syntax is that of Python 3.8, as environment.py says.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable

# A line in a log this often shows that a long step is alive.
HEARTBEAT_SECONDS = 30


def canonical(name: str) -> str:
    """The one spelling of a package's name that all its spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60:02d}s"


class News:
    """What uv or pip is doing right now, read from what it prints and, while it is silent, from what is unpacked."""

    _DOWNLOADING = re.compile(r"Downloading (?:\S*/)?([A-Za-z0-9_.-]+?)(?:-\d\S*?(\.metadata)?)?(?: (\(.+\)))?$")
    _LOOKING_AT = re.compile(r"(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9_.-]+)")
    _INSTALLING = re.compile(r"Installing collected packages: (.+)")
    _UV_HAS = re.compile(r"(Downloaded|Prepared) (.+?)(?: in .+)?$")
    _BUILDING = ("Building ", "Preparing ", "Getting requirements", "Installing build dependencies")

    def __init__(self) -> None:
        self._doing = ""
        self._order: list[str] = []

    def read(self, line: str) -> None:
        line = line.strip()
        if found := self._DOWNLOADING.match(line):
            name, metadata, size = found.groups()
            self._doing = f"looking at {name}" if metadata else f"downloading {name} {size or ''}".rstrip()
        elif found := self._LOOKING_AT.match(line):
            self._doing = f"looking at {found[1]}"
        elif found := self._INSTALLING.match(line):
            self._order = [canonical(name) for name in found[1].split(", ")]
        elif found := self._UV_HAS.match(line):
            self._doing = f"{found[1].lower()} {found[2]}"
        elif line.startswith(self._BUILDING):
            self._doing = "building posenc"

    def now(self, installed: Callable[[], set[str]]) -> str:
        """pip names the packages once, installs them in that order, and says nothing more until all are in."""
        if not self._order:
            return self._doing
        there = installed()
        missing = [name for name in self._order if name not in there]
        total = len(self._order)
        return f"installing {missing[0]}, {total - len(missing) + 1} of {total}" if missing else "finishing"


class Progress:
    """One line per step: redrawn in place on a terminal, plain lines elsewhere."""

    def __init__(self, steps: int) -> None:
        self._steps, self._number, self._label = steps, 0, ""
        self._began = self._spoke = 0.0
        self._live = sys.stdout.isatty()
        unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        self._frames, self._tick_mark = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "✓") if unicode else ("|/-\\", "done,")

    def start(self, label: str) -> None:
        self._number += 1
        self._label = label
        self._began = self._spoke = time.monotonic()
        if not self._live:
            self._say("...")

    def tick(self, doing: str = "") -> None:
        now = time.monotonic()
        elapsed = duration(now - self._began)
        if self._live:
            frame = self._frames[int(now * 8) % len(self._frames)]
            line = f"[{self._number}/{self._steps}] {frame} {self._label}  {elapsed}  {doing}"
            print("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1], end="", flush=True)
        elif now - self._spoke >= HEARTBEAT_SECONDS:
            self._spoke = now
            self._say(f"{elapsed}, {doing or 'running'}")

    def done(self, note: str = "") -> None:
        took = duration(time.monotonic() - self._began)
        self._say(f"{self._tick_mark} {took}{'  ' + note if note else ''}")

    def failed(self) -> None:
        self._say(f"stopped after {duration(time.monotonic() - self._began)}")

    def _say(self, what: str) -> None:
        erase = "\r\x1b[K" if self._live else ""
        print(f"{erase}[{self._number}/{self._steps}] {self._label}  {what}", flush=True)
