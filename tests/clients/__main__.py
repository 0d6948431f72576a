"""``make test-clients``: clients of others, unchanged, against our server with the demo model.

For each client: an environment of its own in ``.clients``, the checks of its program, and what docs/clients.md shows of
it. All of them ask one server, one client at a time.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
import time
from typing import Annotated

import httpx
import typer

from tests.benchmarks.servers import Command, running
from tests.clients import tables
from tests.clients.clients import CLIENTS, PAGE, PROGRAMS, ROOT, Client
from tests.clients.environments import Environment, environment_of
from tests.clients.pinning import pin
from tests.clients.shown import ADDRESS, KEY, Shown, shown
from tests.matrix.environments import NotMade

_SERVE = (sys.executable, "-m", "server", "serve", "--config", "configs/demo.yaml", "--port", "{port}")
_SERVER = Command(_SERVE, {"POSENC_API_KEYS": KEY})
_LAST_LINES = 25
_SECONDS_TO_COUNT = 1.0  # vLLM counts a request after it has answered it


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[CLIENT]...", help="As in docs/clients.md.")] = None,
    pins: Annotated[bool, typer.Option("--pin", help="Choose the newest releases, and run nothing.")] = False,
    address: Annotated[str | None, typer.Option("--address", help=f"Of a demo that runs, with the key {KEY}.")] = None,
    folder: Annotated[pathlib.Path, typer.Option("--folder", help="Of the environments.")] = ROOT / ".clients",
) -> None:
    """Run clients of others against our server, and print what works."""
    known = {client.name: client for client in CLIENTS}
    if unknown := set(names or ()) - set(known):
        raise typer.BadParameter(f"known are {', '.join(known)}; got {', '.join(sorted(unknown))}")
    chosen = [known[name] for name in names or known]
    if pins:
        for client in chosen:
            pin(client)
        return
    environments = [_made(client, folder.resolve()) for client in chosen]
    server = contextlib.nullcontext(address) if address else running(_SERVER)
    with server as found:
        outcomes = [_outcome(environment, found) for environment in environments]
    libraries = [each for each, client in zip(outcomes, chosen, strict=True) if client.program]
    benchmarks = [each for each, client in zip(outcomes, chosen, strict=True) if not client.program]
    printed = [tables.libraries(libraries), tables.places(libraries), tables.benchmarks(benchmarks)]
    print(*printed, sep="\n\n")
    failures = [failure for each in outcomes for failure in each.failures]
    page = PAGE.read_text(encoding="utf-8")
    if not failures and not names and not all(table in page for table in printed):
        failures = [f"{PAGE.relative_to(ROOT)} does not have these tables: put them there"]
    if failures:
        sys.exit("\n".join(failures))


def _made(client: Client, folder: pathlib.Path) -> Environment:
    try:
        return environment_of(client, folder)
    except NotMade as error:
        sys.exit(f"{client.name}: its environment cannot be made: {error}")


def _outcome(environment: Environment, address: str) -> tables.Outcome:
    client = environment.client
    print(f"{client.name} {environment.version}: ...", flush=True)
    outcome = tables.Outcome(client.name, environment.version)
    answered, crossed = _counted(address)
    if client.program:
        _run_program(environment, address, outcome)
    for example in shown(client):
        outcome.checks[f"docs, {example.language}"] = _wrong_with(example, environment, address)
    time.sleep(_SECONDS_TO_COUNT)
    now_answered, now_crossed = _counted(address)
    outcome.requests, outcome.crossings = now_answered - answered, now_crossed - crossed
    return outcome


def _run_program(environment: Environment, address: str, outcome: tables.Outcome) -> None:
    client = environment.client
    results = environment.folder / "results.jsonl"
    results.unlink(missing_ok=True)
    programs = environment.folder / PROGRAMS.name if client.is_of_npm else PROGRAMS
    program = programs / str(client.program)
    about = {"CLIENT_ADDRESS": address, "CLIENT_KEY": KEY, "CLIENT_RESULTS": str(results)}
    done = _ran(environment, about, str(environment.interpreter), str(program))
    if done.returncode:
        outcome.checks["program"] = f"ended with status {done.returncode}\n{_end(done.stdout)}"
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        record = json.loads(line)
        if "check" in record:
            outcome.checks[record["check"]] = record["failed"]
        elif "cancelled_by" in record:
            outcome.cancelled_by = record["cancelled_by"]
        else:
            outcome.places[record["place"]] = record["expression"]


def _wrong_with(example: Shown, environment: Environment, address: str) -> str | None:
    text = example.text.replace(ADDRESS, address)
    if example.language == "console":
        commands = [("bash", "-c", command.replace(ADDRESS, address)) for command in example.commands]
    else:
        file = environment.folder / f"shown.{'mjs' if example.language == 'javascript' else 'py'}"
        file.write_text(text, encoding="utf-8")
        commands = [(str(environment.interpreter), str(file))]
    said = ""
    for command in commands:
        done = _ran(environment, {}, *command)
        said += done.stdout
        if done.returncode:
            return f"{command[-1]} ended with status {done.returncode}\n{_end(done.stdout)}"
    if missing := example.missing_from(said):
        return f"it does not print {missing}\n{_end(said)}"
    return None


def _ran(environment: Environment, about: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    try:
        return environment.run(*command, environment=about)
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else str(error.stdout)
        return subprocess.CompletedProcess(command, 124, said)


def _counted(address: str) -> tuple[int, int]:
    """The requests that the server has answered, and their crossings."""
    answer = httpx.get(f"{address}/metrics", headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    answer.raise_for_status()
    return tuple(
        round(sum(float(line.rpartition(" ")[2]) for line in answer.text.splitlines() if line.startswith(f"{name}{{")))
        for name in ("vllm:request_success_total", "posenc_crossings_total")
    )  # type: ignore[return-value]


def _end(said: str) -> str:
    return "\n".join(said.strip().splitlines()[-_LAST_LINES:])


if __name__ == "__main__":
    typer.run(main)
