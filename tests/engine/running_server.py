"""Servers as users start them: our command, or plain vLLM with one flag, in a process of its own, on a free port."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Literal

import yaml

from tests.benchmarks.servers import Command, Process, running
from tests.engine import device, forked

Server = Literal["posenc", "vllm"]


@contextlib.contextmanager
def running_server(
    folder: pathlib.Path,
    settings: dict[str, Any],
    environment: dict[str, str] | None = None,
    *,
    server: Server = "posenc",
    verbose: bool = True,
    imported: bool = False,
    log: pathlib.Path | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """Serve a deployment; gives the server's address, and stops it on leaving.

    Args:
        server: whose it is.
        imported: whether its processes, which nobody looks at, are forked from one that has imported vLLM.
        log: where its output goes, if that is to be kept.
        waiting: called now and then until it is ready.

    Raises:
        ServerFailed: when it refuses to start; the message is the end of its log.
    """
    if server == "vllm":
        with running(_plain_vllm(settings, environment or {}, imported), waiting=waiting, log=log) as address:
            yield address
        return
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings | {"engine": device.ENGINE | settings.get("engine", {})}))
    arguments = ["serve", "--config", str(file), *["--verbose"] * verbose, "--set", "server.port={port}"]
    command = _command("server", arguments, environment or {}, imported)
    with running(command, waiting=waiting, log=log) as address:
        yield address


def _command(module: str, arguments: list[str], environment: Mapping[str, str], imported: bool) -> Command:
    """A module run as a program: ours by the name under which it is installed, if it is not forked."""
    if imported and not device.ON_CUDA:
        return Command((module, *arguments), environment, _forked)
    posenc = (str(pathlib.Path(sys.executable).with_name("posenc")),)
    return Command((*(posenc if module == "server" else (sys.executable, "-m", module)), *arguments), environment)


def _forked(arguments: list[str], environment: dict[str, str], said: IO[str]) -> Process:
    return forked.ForkedServer(arguments[0], arguments[1:], environment, pathlib.Path(said.name))


def _plain_vllm(settings: dict[str, Any], environment: Mapping[str, str], imported: bool) -> Command:
    """vLLM's own server with our section in one flag, and of the other settings what vLLM has itself."""
    flags = ["--model", settings["model"], "--served-model-name", settings["served_model_name"]]
    for name, value in (device.ENGINE | settings.get("engine", {})).items():
        flag = name.replace("_", "-")
        flags += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    carried = {"posenc": "scaling", "posenc_access": "access", "posenc_limits": "limits"}
    section = json.dumps({key: settings[name] for key, name in carried.items() if name in settings})
    module = "vllm.entrypoints.openai.api_server"  # vllm serve, which vLLM's package for CPUs has not
    arguments = [*flags, "--additional-config", section, "--port", "{port}"]
    # As others have it: what our server sets for itself is not set.
    unset = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0", "VLLM_LOGGING_LEVEL": "INFO"}
    return _command(module, arguments, unset | dict(environment), imported)
