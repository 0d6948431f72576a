"""A newcomer's first hour, timed: ``python -m tests.newcomer`` clones, sets up, serves, asks, and makes usual mistakes.

Everything that is kept between starts (models, compiled kernels) is in a folder of its own, so that it is a first time.
Packages come from where pip's and uv's settings lead, and from their caches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table

from tests.benchmarks.servers import free_port
from tests.without_compilers import link_programs

ROOT = pathlib.Path(__file__).resolve().parents[1]
_QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16}
# A step ends when the command has written this; what follows belongs to the next one.
_STEPS = (
    ("packages", r"made in \d+ seconds"),
    ("the model downloaded", r"converting"),
    ("the model converted, settings checked", r": trained on "),
    ("engine", r"^ready: "),
)
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_START_SECONDS = 900.0
_LEFT_FREE = 5 * 2**30
_console = Console(soft_wrap=True)


@dataclasses.dataclass
class Hour:
    """What was done, and how long it took.

    Attributes:
        checkout: a fresh clone, in a folder with a space.
        environment: of every command.
        rows: step, seconds, and what was said.
    """

    checkout: pathlib.Path
    environment: dict[str, str]
    rows: list[tuple[str, float, str]] = dataclasses.field(default_factory=list)

    def note(self, step: str, seconds: float, said: str = "") -> None:
        self.rows.append((step, seconds, said))
        _console.print(f"{seconds:6.1f} s  {step}{said and ': ' + said}", markup=False, highlight=False)

    def run(self, step: str, *command: str, **environment: str) -> None:
        """Run a command that ends by itself, and note its last line."""
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=self.checkout, env=self.environment | environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=_START_SECONDS,
        )  # fmt: skip
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        refused = [line for line in lines if line.startswith(("refused ", "failed "))]
        self.note(step, time.monotonic() - began, (refused or lines or [""])[-1])

    @contextlib.contextmanager
    def serve(self, named: str, *command: str, **environment: str) -> Iterator[str | None]:
        """Start a server, note its steps and the longest silence; gives its address, or None where it ended."""
        port = free_port()
        words = [word.replace("{port}", str(port)) for word in command]
        began = last = written = time.monotonic()
        silence, steps, tail = 0.0, list(_STEPS), ""
        ours, theirs = pty.openpty()  # a person sits at a terminal
        process = subprocess.Popen(
            words, cwd=self.checkout, env=self.environment | {"TERM": "xterm"} | environment, stdin=subprocess.DEVNULL,
            stdout=theirs, stderr=theirs, process_group=0,
        )  # fmt: skip
        os.close(theirs)
        try:
            while steps and process.poll() is None and time.monotonic() - began < _START_SECONDS:
                if not select.select([ours], [], [], 0.1)[0]:
                    continue
                try:
                    piece = os.read(ours, 65536)
                except OSError:  # the last of its processes has ended
                    break
                now = time.monotonic()
                silence, written = max(silence, now - written), now
                tail = _CODES.sub("\n", tail + piece.decode(errors="replace"))[-5000:]
                for number, (step, mark) in enumerate(steps):
                    if re.search(mark, tail, re.MULTILINE):
                        self.note(f"{named}: {step}", now - last)
                        last, tail = now, ""
                        del steps[: number + 1]
                        break
            if steps:
                process.wait(10)
                said = [line for line in tail.splitlines() if line.startswith(("refused ", "failed "))]
                self.note(f"{named}: ended with status {process.returncode}", time.monotonic() - began, *said[-1:])
                yield None
                return
            self.note(f"{named}: the longest silence", silence)
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            os.close(ours)

    def ask(self, named: str, address: str, began: float) -> None:
        asked = time.monotonic()
        answer = httpx.post(f"{address}/v1/chat/completions", json=_QUESTION, timeout=300)
        answer.raise_for_status()
        said = answer.json()["choices"][0]["message"]["content"]
        self.note(f"{named}: the answer", time.monotonic() - asked, said)
        self.note(f"{named}: in all", time.monotonic() - began)


def main(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with the clone.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Only the first and the second start.")] = False,
) -> None:
    """Walk through a newcomer's hour, and print a table of what took how long."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="a newcomer "))
    clone = ["git", "clone", "--quiet", str(ROOT), str(folder / "posenc")]
    began = time.monotonic()
    subprocess.run(clone, check=True)
    kept = {"XDG_CACHE_HOME": "cache", "TORCH_EXTENSIONS_DIR": "kernels", "VLLM_CACHE_ROOT": "vllm"}
    own = {name: str(folder / place) for name, place in kept.items()}
    # The caches of pip and uv are the machine's: the folder above would be theirs as well.
    own |= {
        "UV_CACHE_DIR": str(pathlib.Path.home() / ".cache/uv"),
        "PIP_CACHE_DIR": str(pathlib.Path.home() / ".cache/pip"),
    }
    others = ("POSENC_VENV", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")  # which newcomers do not set
    inherited = {name: value for name, value in os.environ.items() if name not in others}
    hour = Hour(folder / "posenc", inherited | own)
    hour.note("clone", time.monotonic() - began)
    try:
        make = ("make", "serve", "MODEL=smollm2", "PORT={port}")
        with hour.serve("first start", *make) as address:
            if address:
                hour.ask("first start", address, began)
        if not short:
            _make_mistakes(hour)
        again = time.monotonic()
        with hour.serve("second start", *make) as address:
            if address:
                hour.ask("second start", address, again)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    _console.print(_table(hour))


def _make_mistakes(hour: Hour) -> None:
    posenc = ".venv/bin/posenc"
    hour.run("a misspelt model", posenc, "serve", "smolm2")
    hour.run("a misspelt method", posenc, "serve", "demo", "--set", "scaling.rope_type=yarm")
    hour.run("a misspelt flag", posenc, "serve", "demo", "--max-num-seq", "4")
    hour.run("a GGUF file", posenc, "serve", "model.gguf")
    hour.run(
        "a hub out of reach", posenc, "serve", "Qwen/Qwen3-8B", HF_ENDPOINT="http://127.0.0.1:9", HF_HOME="nowhere"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        hour.run("a port that is taken", posenc, "serve", "demo", "--port", str(taken.getsockname()[1]))
    hour.run("a check", posenc, "check", "demo")
    hour.run("the demonstration", posenc, "demo")
    programs = hour.checkout.parent / "programs"
    programs.mkdir()
    link_programs(programs)
    with hour.serve("without a compiler", posenc, "serve", "demo", "--port", "{port}", PATH=str(programs)):
        pass
    unset = ("--set", "engine.kv_cache_memory_bytes=null", "--set", "engine.gpu_memory_utilization=null")
    with (
        _little_free_memory(),
        hour.serve("with 5 GiB of free memory", posenc, "serve", "smollm2", *unset, "--port", "{port}") as address,
    ):
        if address:
            hour.ask("with 5 GiB of free memory", address, time.monotonic())


@contextlib.contextmanager
def _little_free_memory() -> Iterator[None]:
    """Hold all memory that is free, but for 5 GiB."""
    [available] = re.findall(r"^MemAvailable: +(\d+) kB$", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    taken = 1024 * int(available) - _LEFT_FREE
    if taken <= 0:
        yield
        return
    with mmap.mmap(-1, taken) as held:
        for begin in range(0, taken, mmap.PAGESIZE):
            held[begin] = 1
        yield


def _table(hour: Hour) -> Table:
    table = Table("step", "seconds", "what it said", title=f"A newcomer's hour, Python {sys.version.split()[0]}")
    for step, seconds, said in hour.rows:
        table.add_row(step, f"{seconds:.1f}", said[:160])
    return table


if __name__ == "__main__":
    typer.run(main)
