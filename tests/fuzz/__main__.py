"""Send mutated requests to one server: ``python -m tests.fuzz --requests 10000``.

No answer may be a 5xx, none may be missing, the memory stays bounded, and the next good request is answered as before.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import pathlib
import re
import tempfile
import time
from typing import Annotated, Any

import httpx
import typer

from tests.checkpoints import save_tiny
from tests.engine.running_server import running_server
from tests.fuzz import bodies
from tests.fuzz.processes import listening_at, resident_bytes

GOOD = {"model": "tiny", "prompt": "the good request", "max_tokens": 12, "temperature": 0, "logprobs": 2}
SERVED: dict[str, Any] = {
    "served_model_name": "tiny",
    "scaling": {"rope_type": "yarn", "scales": [1, 2, 4, 8], "headroom_tokens": 40},
    "engine": {
        **{"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**28},
        **{"max_num_seqs": 32},
    },
    "log_requests": "off",
}
_END = 250
_SECONDS = 120.0  # after which an answer is taken for missing
_ERROR_IN_STREAM = re.compile(r'"code":\s*"?(5\d\d)')


@dataclasses.dataclass
class Found:
    """What came of the requests.

    Attributes:
        statuses: how many answers had each status; 0 where there was none.
        bad: route, body, and what was wrong, for each answer that should not be.
        slowest: seconds, of the slowest answer.
        peak_bytes: of all processes of the server together.
    """

    statuses: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    bad: list[tuple[str, bytes, str]] = dataclasses.field(default_factory=list)
    slowest: float = 0.0
    first_bytes: int = 0
    last_bytes: int = 0
    peak_bytes: int = 0
    unhealthy_seconds: float = 0.0


async def fuzz(address: str, *, seed: int, count: int, at_once: int = 8) -> Found:
    """Send mutated requests.

    Args:
        at_once: requests at any time.
    """
    found, mutated = Found(), bodies.requests(seed, count)
    pid = listening_at(httpx.URL(address).port or 80)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=_SECONDS, limits=limits) as client:

        async def worker() -> None:
            for route, body, headers in mutated:
                await _ask(client, route, body, headers, found)

        found.first_bytes = sum(resident_bytes(pid).values())
        watching = asyncio.create_task(_watch(client, pid, found))
        await asyncio.gather(*(worker() for _ in range(at_once)))
        watching.cancel()
    found.last_bytes = sum(resident_bytes(pid).values())
    return found


async def _ask(client: httpx.AsyncClient, route: str, body: bytes, headers: dict[str, str], found: Found) -> None:
    began = time.monotonic()
    try:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        answer = await client.post(route, content=body, headers=raw)
    except httpx.HTTPError as error:
        found.statuses[0] += 1
        found.bad.append((route, body, f"no answer: {error!r}"))
        return
    found.statuses[answer.status_code] += 1
    found.slowest = max(found.slowest, time.monotonic() - began)
    in_stream = (
        _ERROR_IN_STREAM.search(answer.text) if "event-stream" in answer.headers.get("content-type", "") else None
    )
    if answer.status_code >= 500 or in_stream:
        found.bad.append((route, body, f"{answer.status_code}: {answer.text[:300]}"))


async def _watch(client: httpx.AsyncClient, pid: int, found: Found) -> None:
    """Note the memory, and how long the server is deaf."""
    while True:
        began = time.monotonic()
        with contextlib.suppress(httpx.HTTPError):
            await client.get("/health", timeout=60)
        found.unhealthy_seconds = max(found.unhealthy_seconds, time.monotonic() - began)
        found.peak_bytes = max(found.peak_bytes, sum(resident_bytes(pid).values()))
        await asyncio.sleep(0.2)


def save_with_end(folder: pathlib.Path) -> pathlib.Path:
    """The tiny model, with a token that ends an answer: grammars need one."""
    save_tiny(folder, eos_token_id=_END)
    file = folder / "tokenizer_config.json"
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    [token] = [token for token, number in vocabulary.items() if number == _END]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token": token}))
    return folder


def good_answer(address: str) -> Any:
    """What the server says to a request that has nothing wrong."""
    answer = httpx.post(f"{address}/v1/completions", json=GOOD, timeout=60)
    answer.raise_for_status()
    return answer.json()["choices"]


def main(
    requests: Annotated[int, typer.Option(help="How many.")] = 10_000,
    seed: int = 0,
    at_once: Annotated[int, typer.Option(help="Requests at any time.")] = 8,
    address: Annotated[str | None, typer.Option(help="A server that serves the tests' tiny model as tiny.")] = None,
    bad: Annotated[pathlib.Path | None, typer.Option(help="A file for what was answered wrongly.")] = None,
) -> None:
    """Send mutated requests to a server, and say which answers should not be."""
    with contextlib.ExitStack() as stack:
        if address is None:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            settings = SERVED | {"model": str(save_with_end(folder / "tiny"))}
            address = stack.enter_context(running_server(folder, settings))
        before = good_answer(address)
        began = time.monotonic()
        found = asyncio.run(fuzz(address, seed=seed, count=requests, at_once=at_once))
        seconds = time.monotonic() - began
        same = good_answer(address) == before
    print(f"{requests} requests in {seconds:.0f} s, seed {seed}; statuses {dict(found.statuses)}")
    print(f"slowest answer {found.slowest:.1f} s; longest wait for /health {found.unhealthy_seconds:.2f} s")
    sizes = (found.first_bytes, found.peak_bytes, found.last_bytes)
    print("resident MiB at first, at most, at last: " + ", ".join(str(size >> 20) for size in sizes))
    print(f"the good request is answered {'the same' if same else 'OTHERWISE'}; {len(found.bad)} wrong answers")
    for route, body, why in found.bad[:40]:
        print(f"- {route} {body[:300]!r}\n  {why}")
    if bad is not None:
        bad.write_text("\n".join(json.dumps([route, body.decode("latin-1"), why]) for route, body, why in found.bad))
    raise typer.Exit(int(bool(found.bad) or not same))


if __name__ == "__main__":
    typer.run(main)
