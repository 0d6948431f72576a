"""A Prometheus of the distribution with the configuration and the rules of ``deploy/``, that scrapes one server."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import yaml

from tests.benchmarks.servers import free_port
from tests.deploy import tools

OBSERVABILITY = pathlib.Path(__file__).resolve().parents[2] / "deploy/observability"
_READY_SECONDS = 60.0


class Prometheus:
    """A running Prometheus.

    Args:
        address: where it answers.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        answer = httpx.get(f"{self._address}/api/v1/query", params={"query": expression}, timeout=30).json()
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """The rules, with what Prometheus says of their last evaluation."""
        groups = httpx.get(f"{self._address}/api/v1/rules", timeout=30).json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextlib.contextmanager
def scraping(target: str, folder: pathlib.Path) -> Iterator[Prometheus]:
    """Start a Prometheus that scrapes a server each second; a test without Prometheus is skipped.

    Args:
        target: host and port of the server.
    """
    program = tools.need("prometheus")
    config = yaml.safe_load((OBSERVABILITY / "prometheus.yaml").read_text(encoding="utf-8"))
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(OBSERVABILITY / name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = (
        *(program, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address={address}", "--log.level=warn"),
    )
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://{address}/-/ready", timeout=5).status_code == 200:
                    break
            said = (folder / "prometheus.log").read_text(encoding="utf-8")
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.2)
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(30)
