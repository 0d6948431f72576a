"""Asks every route of a running server with no key, a wrong key and a right one: the table of ``docs/security.md``.

``python -m tests.engine.route_table`` starts a server and writes the table (``make routes``).
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import httpx

from server.app.edge.route_classes import CLASSES
from tests.benchmarks.servers import free_port
from tests.checkpoints import save_tiny
from tests.engine.running_server import Server, running_server

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- routes: written by make routes -->\n", "<!-- routes: end -->\n"

KEYS = {"alice": "the-key-of-alice", "ops": "the-key-of-ops"}
# Everything that vLLM registers only when it is asked to.
EVERY_ROUTE = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
_LOGGED = re.compile(r"Route: (/\S*), Methods: ([A-Z, ]+)$", re.MULTILINE)
_BELOW_MOUNTS = (("/metrics", "GET", "/metrics/below"),)  # vLLM's log names no mounts
_NOT_SERVED = "this route is not served here"


class Row(NamedTuple):
    """A route, and the status with no key, a wrong key, and a right one; of one that lets in, its words."""

    route: str
    its_class: str
    without: str
    wrong: str
    right: str

    def __str__(self) -> str:
        return f"| `{self.route}` | {self.its_class} | {self.without} | {self.wrong} | {self.right} |"


class Open(NamedTuple):
    """A server with every route, the keys of ``KEYS``, and administration at an address of its own."""

    address: str
    administration: str
    keys_file: pathlib.Path
    log: pathlib.Path

    def routes(self) -> list[tuple[str, str]]:
        """Templates and methods, as vLLM logs them."""
        logged = self.log.read_text(errors="replace")
        return [(path, method) for path, methods in _LOGGED.findall(logged) for method in methods.split(", ")]

    def rows(self) -> list[Row]:
        """What every route answers at the server's own address."""
        asked = [(template, method, template) for template, method in self.routes() if method != "HEAD"]
        with httpx.Client(base_url=self.address, timeout=60) as client:
            return sorted({_row(client, *each) for each in (*asked, *_BELOW_MOUNTS)}, key=_by_class)


@contextlib.contextmanager
def every_route(folder: pathlib.Path, settings: dict[str, Any], server: Server = "posenc") -> Iterator[Open]:
    """Serve with every route that vLLM can register, and with keys.

    Args:
        folder: for the file of keys and the log.
    """
    keys_file, log = folder / "keys", folder / "log"
    keys_file.write_text("".join(f"{name}: {key}\n" for name, key in KEYS.items()))
    administration = f"127.0.0.1:{free_port()}"
    access = {"keys_file": str(keys_file), "administration": administration, "administrators": ["ops"]}
    settings = settings | {"access": access}
    with running_server(folder, settings, EVERY_ROUTE, server=server, imported=True, log=log) as address:
        yield Open(address, f"http://{administration}", keys_file, log)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def table(rows: Iterable[Row]) -> str:
    head = "| Route | Class | no key | a wrong key | a key |\n| --- | --- | --- | --- | --- |\n"
    return head + "".join(f"{row}\n" for row in rows)


def written() -> str:
    """The table that the page has."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip("\n") + "\n"


def _row(client: httpx.Client, template: str, method: str, path: str) -> Row:
    path = re.sub(r"\{\w+\}", "any", path)
    answers = [
        client.request(method, path, headers=headers, json={} if method == "POST" else None)
        for headers in ({}, bearer("wrong"), bearer(KEYS["alice"]))
    ]
    its_class = CLASSES[template].value if template in CLASSES else "none"
    shown = template if template == path or "{" in template else f"{template}/..."
    return Row(f"{method} {shown}", its_class, *map(_said, answers))


def _said(answer: httpx.Response) -> str:
    if answer.status_code == 401 or (answer.status_code == 404 and _NOT_SERVED in answer.text):
        return str(answer.status_code)
    return "let in"


def _by_class(row: Row) -> tuple[int, str, str]:
    order = ["open", "inference", "metrics", "administration", "none"]
    method, _, path = row.route.partition(" ")
    return order.index(row.its_class), path, method


def main() -> None:
    """Write the table into the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        settings = {"model": str(save_tiny(folder / "tiny")), "served_model_name": "tiny", "engine": SMALL}
        with every_route(folder, settings) as server:
            rows = server.rows()
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(f"{PAGE.name}: {len(rows)} routes")


SMALL = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**26}

if __name__ == "__main__":
    main()
