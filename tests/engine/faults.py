"""What a fault does to a server: what its clients see, its status, how long it takes, and which processes are left.

``make faults`` runs the tests of faults, also those that are too slow for every run, and prints the table of
docs/operations.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

_RECORDS = "FAULTS_TABLE"  # a file; where it is set, every fault is tried
_TESTS = sorted(str(path) for path in pathlib.Path(__file__).parent.glob("test_faults*.py"))
_GONE_SECONDS = 30

IS_BY_HAND = _RECORDS in os.environ
BY_HAND = pytest.mark.skipif(not IS_BY_HAND, reason="one more start of a server; make faults runs it")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One row of the table.

    Attributes:
        client: what the clients saw.
        status: the server's, None where it still runs.
        seconds: from the fault to the end of the server, or until it serves again.
        left: processes of the server that are there afterwards, and should not be.
    """

    fault: str
    client: str
    status: int | None
    seconds: float
    left: int


def record(outcome: Outcome) -> None:
    """Keep an outcome for the table."""
    if path := os.environ.get(_RECORDS):
        with open(path, "a") as records:
            records.write(json.dumps(dataclasses.asdict(outcome)) + "\n")


class Victim:
    """A server of this process, with all the processes that it started.

    Args:
        address: where it listens.
    """

    def __init__(self, address: str) -> None:
        port = address.rpartition(":")[2]
        (self.server,) = (child for child in psutil.Process().children() if port in " ".join(child.cmdline()))
        self.processes = [self.server, *self.server.children(recursive=True)]

    def named(self, title: str) -> list[psutil.Process]:
        """Its processes whose title has this word."""
        return [process for process in self.processes if title in " ".join(process.cmdline())]

    def ended(self, within: float = _GONE_SECONDS) -> tuple[int | None, float, int]:
        """Wait until all its processes are gone: the server's status, the seconds, and how many are left."""
        began = time.monotonic()
        _, left = psutil.wait_procs(self.processes, timeout=within)
        status = None if self.server in left else self.server.wait()
        return status, round(time.monotonic() - began, 1), len(left)


class Asking:
    """A client's request in a thread of its own.

    Args:
        ask: makes the request; what it returns is what the client saw.
    """

    def __init__(self, ask: Callable[[Asking], str]) -> None:
        self.runs, self._saw = threading.Event(), "nothing"
        self._thread = threading.Thread(target=self._run, args=(ask,), daemon=True)
        self._thread.start()

    def saw(self) -> str:
        """What it saw, when it has ended."""
        self._thread.join(timeout=120)
        assert not self._thread.is_alive(), "the client still waits"
        return self._saw

    def _run(self, ask: Callable[[Asking], str]) -> None:
        try:
            self._saw = ask(self)
        except httpx.HTTPError as error:
            self._saw = type(error).__name__


def completion(address: str, num_tokens: int, **further: Any) -> Callable[[Asking], str]:
    """A completion in one piece: its status, and why it ended or the error's text."""

    def ask(asking: Asking) -> str:
        asking.runs.set()
        answer = httpx.post(f"{address}/v1/completions", json=_body(num_tokens) | further, timeout=120)
        try:
            return f"{answer.status_code} {_end_of(answer.json())}"
        except (ValueError, LookupError, TypeError):
            return f"{answer.status_code} {answer.text}"

    return ask


def stream(address: str, num_tokens: int) -> Callable[[Asking], str]:
    """A streamed completion: its status and how its last event ends; its ``runs`` is set at the tenth token."""

    def ask(asking: Asking) -> str:
        last = "no event"
        body = _body(num_tokens) | {"stream": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=120) as response:
            events = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
            for number, event in enumerate(events):
                if number == 10:
                    asking.runs.set()
                if event != "[DONE]":
                    last = _end_of(json.loads(event))
            return f"{response.status_code} {last}"

    return ask


def probe(address: str, route: str = "/health/ready") -> tuple[int, str]:
    """A probe's status, and its reason."""
    answer = httpx.get(f"{address}{route}", timeout=30)
    return answer.status_code, answer.json().get("reason", "")


def until(holds: Callable[[], bool], seconds: float = 60.0) -> float:
    """Wait until something holds; how long it took, seconds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s"
        time.sleep(0.05)
    return round(time.monotonic() - began, 1)


def _body(num_tokens: int) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "a" * 100, "max_tokens": num_tokens, "ignore_eos": True}


def _end_of(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return str(answer["error"]["message"])
    return str(answer["choices"][0]["finish_reason"])


def _rows(records: str) -> Iterator[str]:
    yield "| fault | what clients saw | status | seconds | processes left |"
    yield "| --- | --- | --- | --- | --- |"
    for line in records.splitlines():
        each = Outcome(**json.loads(line))
        status = "serves on" if each.status is None else str(each.status)
        yield f"| {each.fault} | {each.client} | {status} | {each.seconds:g} | {each.left} |"


def main() -> int:
    """Run the tests of faults; print the table."""
    with tempfile.NamedTemporaryFile("r") as records:
        tests = [sys.executable, "-m", "pytest", "-q", "-rs", "--timeout", "900", *_TESTS, *sys.argv[1:]]
        status = subprocess.run(tests, env=os.environ | {_RECORDS: records.name}, check=False).returncode
        print("\n".join(_rows(records.read())))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
