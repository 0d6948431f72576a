"""Servers as users start them: our command, or plain vLLM with one flag, in a process of its own, on a free port."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import yaml

from tests.benchmarks.servers import Command, running
from tests.engine import device

Server = Literal["posenc", "vllm"]


@contextlib.contextmanager
def running_server(
    folder: pathlib.Path,
    settings: dict[str, Any],
    environment: dict[str, str] | None = None,
    *,
    server: Server = "posenc",
    verbose: bool = True,
    log: pathlib.Path | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """Serve a deployment; gives the server's address, and stops it on leaving.

    Args:
        server: whose it is.
        log: where its output goes, if that is to be kept.
        waiting: called now and then until it is ready.

    Raises:
        ServerFailed: when it refuses to start; the message is the end of its log.
    """
    if server == "vllm":
        with running(_plain_vllm(settings, environment or {}), waiting=waiting, log=log) as address:
            yield address
        return
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings | {"engine": device.ENGINE | settings.get("engine", {})}))
    posenc = str(pathlib.Path(sys.executable).with_name("posenc"))
    arguments = (posenc, "serve", "--config", str(file), *["--verbose"] * verbose, "--set", "server.port={port}")
    with running(Command(arguments, environment or {}), waiting=waiting, log=log) as address:
        yield address


def _plain_vllm(settings: dict[str, Any], environment: Mapping[str, str]) -> Command:
    """vLLM's own server with our section in one flag, and of the other settings what vLLM has itself."""
    flags = ["--model", settings["model"], "--served-model-name", settings["served_model_name"]]
    for name, value in (device.ENGINE | settings.get("engine", {})).items():
        flag = name.replace("_", "-")
        flags += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    carried = {"posenc": "scaling", "posenc_access": "access", "posenc_limits": "limits"}
    section = json.dumps({key: settings[name] for key, name in carried.items() if name in settings})
    module = "vllm.entrypoints.openai.api_server"  # vllm serve, which vLLM's package for CPUs has not
    arguments = (sys.executable, "-m", module, *flags, "--additional-config", section, "--port", "{port}")
    # As others have it: what our server sets for itself is not set.
    unset = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0", "VLLM_LOGGING_LEVEL": "INFO"}
    return Command(arguments, unset | dict(environment))
