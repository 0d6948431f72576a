"""Our server as users start it: the command, in a process of its own, on a free port."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from tests.benchmarks.servers import Command, running
from tests.engine import device


@contextlib.contextmanager
def running_server(
    folder: pathlib.Path,
    settings: dict[str, Any],
    environment: dict[str, str] | None = None,
    *,
    verbose: bool = True,
    log: pathlib.Path | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """Serve a deployment; gives the server's address, and stops it on leaving.

    Args:
        log: where its output goes, if that is to be kept.
        waiting: called now and then until it is ready.

    Raises:
        ServerFailed: when it refuses to start; the message is the end of its log.
    """
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings | {"engine": device.ENGINE | settings.get("engine", {})}))
    posenc = str(pathlib.Path(sys.executable).with_name("posenc"))
    arguments = (posenc, "serve", "--config", str(file), *["--verbose"] * verbose, "--set", "server.port={port}")
    with running(Command(arguments, environment or {}), waiting=waiting, log=log) as address:
        yield address
