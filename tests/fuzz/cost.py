"""What the largest and worst bodies cost before the engine sees them: ``python -m tests.fuzz.cost``.

Each body goes through our middleware and vLLM's own application in this process, which has no engine. ``--without``
leaves our middleware out.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import pathlib
import time
from collections.abc import Callable
from typing import Annotated, Any

import psutil
import typer

from tests.fuzz.attacks import ATTACKS, nested

MIB = 2**20


def _text(inner: bytes) -> bytes:
    return b'{"model":"tiny","prompt":"' + inner + b'"}'


def _chat(messages: list[Any]) -> bytes:
    return json.dumps({"model": "tiny", "messages": messages}, separators=(",", ":")).encode()


def _input(items: list[Any]) -> bytes:
    return json.dumps({"model": "tiny", "input": items}, separators=(",", ":")).encode()


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * MIB}}

# What somebody may well send, and what only an attacker sends; each with its route and how the body is made.
BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "1M tokens as ids": ("/v1/completions", lambda: b'{"model":"tiny","prompt":[' + b"151000," * 1048575 + b"151000]}"),
    "1M tokens as text, 5 MB": ("/v1/completions", lambda: _text(b"word " * MIB)),
    "30 images of 1 MiB": ("/v1/chat/completions", lambda: _chat([{"role": "user", "content": [IMAGE] * 30}])),
    "5,000 messages of a chat": ("/v1/chat/completions", lambda: _chat([{"role": "user", "content": "hello"}] * 5000)),
    "5,000 messages, half of them calls of tools": (
        "/v1/chat/completions",
        lambda: _chat(
            [
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c", "content": "1"},
            ]
            * 2500
        ),
    ),
    "5,000 items of an input": ("/v1/responses", lambda: _input([{"role": "user", "content": "hello"}] * 5000)),
    "32 MiB of one text": ("/v1/completions", lambda: _text(b"a" * (32 * MIB - 100))),
    "32 MiB of spaces": ("/v1/completions", lambda: b" " * (32 * MIB - 100) + b"{}"),
    "8 MiB of emoji": ("/v1/completions", lambda: _text("\U0001f600".encode() * (2 * MIB - 10))),
    "8 Mi escapes": ("/v1/completions", lambda: _text(b"\\n" * (8 * MIB - 10))),
    "2.7 Mi escapes of six bytes": ("/v1/completions", lambda: _text(b"\\u1234" * (8 * MIB // 3 - 10))),
    "quotes and backslashes": ("/v1/completions", lambda: _text(b'\\"\\\\' * (4 * MIB - 10))),
    "37,000 empty objects": ("/v1/completions", lambda: b'{"x":[' + b"{}," * 36_990 + b"{}]}"),
    "75,000 keys": ("/v1/completions", lambda: b"{" + b",".join(b'"k%d":0' % i for i in range(74_980)) + b"}"),
    "1.1 M zeros": ("/v1/completions", lambda: b'{"x":[' + b"0," * 1_099_990 + b"0]}"),
    "74,000 short texts": ("/v1/completions", lambda: b'{"x":[' + b'"abc",' * 74_000 + b'"abc"]}'),
    "1.1 M floats as a prompt": ("/v1/completions", lambda: b'{"prompt":[' + b"1.5," * 1_099_990 + b"1.5]}"),
    "1 M ids and a text": ("/v1/completions", lambda: b'{"prompt":[' + b"1," * 1_000_000 + b'"a"]}'),
    "1,024 prompts of wrong ids": ("/v1/completions", lambda: b'{"prompt":[' + b"[1.5]," * 1023 + b"[1.5]]}"),
    "99 levels": ("/v1/completions", lambda: json.dumps({"model": "tiny", "prompt": "a", "x": nested(98)}).encode()),
    "500,000 levels": ("/v1/completions", lambda: b"[" * 500_000),
    "an integer of a million digits": ("/v1/completions", lambda: b'{"n":' + b"1" * MIB + b"}"),
    "a float of 32 million digits": ("/v1/completions", lambda: b'{"n":0.' + b"1" * (32 * MIB - 100) + b"}"),
    "16,384 empty parts": ("/v1/chat/completions", lambda: _chat([{"role": "user", "content": [{}] * 16_384}])),
    "12,000 parts of text": (
        "/v1/chat/completions",
        lambda: _chat([{"role": "user", "content": [{"type": "text", "text": "a"}] * 12_000}]),
    ),
    "4,096 empty tools": ("/v1/responses", lambda: json.dumps({"input": "a", "tools": [{}] * 4096}).encode()),
    "50,000 wrong biases": (
        "/v1/completions",
        lambda: json.dumps({"prompt": "a", "logit_bias": {str(i): "x" for i in range(50_000)}}).encode(),
    ),
    **{name: (route, lambda body=body: body) for name, (route, body) in ATTACKS.items()},  # type: ignore[misc]
}


def application(*, with_ours: bool) -> Any:
    """vLLM's own application, with or without our middleware; nothing runs behind its routes."""
    from vllm.entrypoints.launchers.app import build_app
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from posenc_runtime.vllm_adapter import releases
    from posenc_runtime.vllm_adapter.in_server import endpoints

    if with_ours:
        endpoints.offer()
    arguments = releases.cli_args().make_arg_parser(FlexibleArgumentParser()).parse_args([])
    app = build_app(arguments, ("generate",))
    for name in ("chat", "chat_batch", "completion", "responses"):
        setattr(app.state, f"openai_serving_{name}", None)
    app.state.anthropic_serving_messages = app.state.serving_tokenization = None
    return app


def main(
    without: Annotated[bool, typer.Option(help="Leave our middleware out.")] = False,
    only: Annotated[str, typer.Option(help="Bodies whose names have this text.")] = "",
) -> None:
    """Print for each body how long the event loop did nothing else, the processor time, and the memory."""
    app = application(with_ours=not without)
    gc.freeze()
    print(f"{'body':44} {'bytes':>9} {'status':>6} {'blocked ms':>10} {'cpu ms':>7} {'MiB':>5}", flush=True)
    for name, (route, make) in BODIES.items():
        if only in name:
            # A process each: what one body has taken from the system is not given back before the next.
            child = multiprocessing.get_context("fork").Process(target=_in_a_child, args=(app, name, route, make))
            child.start()
            child.join()


def _in_a_child(app: Any, name: str, route: str, make: Callable[[], bytes]) -> None:
    body = make()
    asyncio.run(measured(app, "", "/v1/completions", b"{}"))  # makes what is made once
    print(asyncio.run(measured(app, name, route, body)), flush=True)


async def measured(app: Any, name: str, route: str, body: bytes) -> str:
    """One line: how long the event loop did nothing else, the processor time, and the memory on top of the body."""
    longest = 0.0
    status = 0
    answer = b""

    async def ticking() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    pieces = [body[start : start + 2**16] for start in range(0, len(body), 2**16)]
    pieces.reverse()

    async def receive() -> Any:
        await asyncio.sleep(0)
        if not pieces:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": pieces.pop(), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        nonlocal status, answer
        status = message.get("status", status)
        answer += message.get("body", b"")

    scope = {
        **{"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": route, "root_path": ""},
        **{"raw_path": route.encode(), "query_string": b"", "client": ("test", 1), "server": ("test", 80)},
        **{"headers": [(b"content-type", b"application/json")], "asgi": {"version": "3.0", "spec_version": "2.3"}},
    }
    peak = _Peak()
    ticks = asyncio.create_task(ticking())
    began = time.process_time()
    await app(scope, receive, send)
    await asyncio.sleep(0)
    cpu = time.process_time() - began
    ticks.cancel()
    said = answer[:70].decode(errors="replace")
    size = peak.more_bytes() >> 20
    return f"{name:44} {len(body):9} {status:6} {longest * 1000:10.0f} {cpu * 1000:7.0f} {size:5}  {said}"


class _Peak:
    """The largest resident size since it was made, on Linux."""

    def __init__(self) -> None:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        self._before = psutil.Process().memory_info().rss

    def more_bytes(self) -> int:
        status = pathlib.Path("/proc/self/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024 - self._before


if __name__ == "__main__":
    typer.run(main)
