"""Load one server: ``python -m tests.soak``.

Requests of mixed lengths cross scales, are preempted, or lose their client. No request may fail, sampled answers must
equal those of the same request alone, no block may stay behind, and the server may not grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Annotated, Any

import httpx
import typer
from prometheus_client.parser import text_string_to_metric_families

from tests.checkpoints import save_tiny
from tests.engine.running_server import running_server
from tests.fuzz.processes import listening_at, resident_bytes

SERVED: dict[str, Any] = {
    "served_model_name": "tiny",
    "scaling": {"rope_type": "yarn", "scales": [1, 2, 4, 8], "headroom_tokens": 8},
    # Room for 10,240 tokens: with 64 requests under way, some are preempted.
    "engine": {
        **{"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 10 * 2**20},
        **{"max_num_seqs": 64, "max_num_batched_tokens": 2048},
    },
    "log_requests": "off",
}
_LEAVING = 0.1  # share of the clients that leave before their answer is complete
_GROWTH = 0.03  # of the resident size, allowed in the second half
_SETTLE_SECONDS = 30.0  # for the server to forget the last clients that left


@dataclasses.dataclass
class Request:
    """One request, and its answer.

    Attributes:
        leaves_after: seconds after which its client is gone; None for one that stays.
        tokens: of the answer.
        error: what went wrong; empty where nothing did.
    """

    prompt: list[int]
    max_tokens: int
    is_streamed: bool
    leaves_after: float | None
    tokens: list[int] = dataclasses.field(default_factory=list)
    error: str = ""

    @property
    def body(self) -> dict[str, Any]:
        return {
            **{"model": "tiny", "prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": 0},
            **{"ignore_eos": True, "return_token_ids": True, "stream": self.is_streamed},
        }


def drawn(seed: int, count: int) -> list[Request]:
    """Requests of mixed lengths; the trained length is 256 tokens, the largest scale covers 2,048."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        prompt = [chance.randrange(2, 256) for _ in range(round(10 ** chance.uniform(0.7, 3.1)))]
        leaves = chance.random() < _LEAVING
        made.append(
            Request(
                prompt=prompt,
                max_tokens=chance.choice([4, 16, 60, 150]),
                is_streamed=chance.random() < 0.5,
                leaves_after=chance.uniform(0.0, 1.5) if leaves else None,
            )
        )
    return made


async def ask(client: httpx.AsyncClient, request: Request) -> None:
    """Send a request, and note its answer."""
    try:
        async with asyncio.timeout(request.leaves_after):
            request.tokens = await _answer(client, request)
    except TimeoutError:
        return
    except (httpx.HTTPError, KeyError, ValueError) as error:
        request.error = repr(error)[:300]
        return
    if len(request.tokens) != request.max_tokens:
        request.error = f"{len(request.tokens)} tokens instead of {request.max_tokens}"


async def _answer(client: httpx.AsyncClient, request: Request) -> list[int]:
    if not request.is_streamed:
        answer = await client.post("/v1/completions", json=request.body)
        if answer.status_code != 200:
            raise ValueError(f"{answer.status_code}: {answer.text[:200]}")
        return list(answer.json()["choices"][0]["token_ids"])
    tokens: list[int] = []
    async with client.stream("POST", "/v1/completions", json=request.body) as stream:
        if stream.status_code != 200:
            raise ValueError(f"{stream.status_code}: {(await stream.aread())[:200]!r}")
        events = b"".join([piece async for piece in stream.aiter_bytes()]).split(b"\n\n")
    for event in events:  # texts may have characters that end a line for others than the protocol
        if event.startswith(b"data: {"):
            for choice in json.loads(event.removeprefix(b"data: "))["choices"]:
                tokens += choice["token_ids"] or []
    return tokens


async def load(address: str, requests: Sequence[Request], at_once: int) -> None:
    """Send all requests, some at any time."""
    waiting = iter(requests)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as client:

        async def worker() -> None:
            for request in waiting:
                await ask(client, request)

        await asyncio.gather(*(worker() for _ in range(at_once)))


def measured(address: str) -> dict[str, float]:
    """Metrics of the server, summed over their labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{address}/metrics", timeout=60).text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def settled(address: str) -> dict[str, float]:
    """Metrics once no request is under way, or after some time."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        found = measured(address)
        busy = found["vllm:num_requests_running"] + found["vllm:num_requests_waiting"] + found["posenc_kv_blocks"]
        if not busy or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def main(
    requests: Annotated[int, typer.Option(help="How many.")] = 5000,
    at_once: Annotated[int, typer.Option(help="Requests at any time.")] = 64,
    sampled: Annotated[int, typer.Option(help="Answers that are compared with those of the request alone.")] = 200,
    seed: int = 0,
    address: Annotated[str | None, typer.Option(help="A server that serves the tests' tiny model as tiny.")] = None,
) -> None:
    """Load a server, and say what is left of the requests."""
    with contextlib.ExitStack() as stack:
        if address is None:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            settings = SERVED | {"model": str(save_tiny(folder / "tiny"))}
            address = stack.enter_context(running_server(folder, settings))
        raise typer.Exit(soak(address, requests, at_once, sampled, seed))


def soak(address: str, count: int, at_once: int, num_sampled: int, seed: int) -> int:
    """Load a server in two halves, and print what came of it; gives the exit status."""
    requests = drawn(seed, count)
    middle = len(requests) // 2
    pid = listening_at(httpx.URL(address).port or 80)
    asyncio.run(load(address, drawn(seed + 1, 2 * at_once), at_once))  # warms up
    before = settled(address)
    sizes, began = [], time.monotonic()
    for half in (requests[:middle], requests[middle:]):
        asyncio.run(load(address, half, at_once))
        after = settled(address)
        sizes.append(resident_bytes(pid))
        print(f"{len(half)} requests, {time.monotonic() - began:.0f} s since the start", flush=True)
    stayed = [request for request in requests if request.leaves_after is None]
    sampled = random.Random(seed).sample(stayed, min(num_sampled, len(stayed)))
    alone = [dataclasses.replace(request, tokens=[], error="") for request in sampled]
    asyncio.run(load(address, alone, 1))
    errors = [request.error for request in (*requests, *alone) if request.error]
    unlike = sum(one.tokens != other.tokens for one, other in zip(sampled, alone, strict=True))
    first, last = (sum(size.values()) for size in sizes)
    left = {name: after[name] - before[name] for name in ("posenc_kv_blocks", "vllm:kv_cache_usage_perc")}
    counts = {
        name: int(after[name] - before[name])
        for name in ("posenc_crossings_total", "vllm:num_preemptions_total", "posenc_rerotated_tokens_total")
    }
    print(f"{len(requests) - len(stayed)} clients left early; {counts}")
    print(f"{len(errors)} errors; {unlike} of {len(sampled)} sampled answers differ from those alone")
    print(f"resident MiB after half and all: {first >> 20}, {last >> 20} ({last / first - 1:+.2%}); by process:")
    for name, size in sizes[1].items():
        print(f"  {name}: {sizes[0].get(name, 0) >> 20}, {size >> 20}")
    print(f"blocks that stayed behind: {left}")
    for error in errors[:10]:
        print(f"- {error}", file=sys.stderr)
    return int(bool(errors) or unlike > 0 or last > first * (1 + _GROWTH) or any(left.values()))


if __name__ == "__main__":
    typer.run(main)
