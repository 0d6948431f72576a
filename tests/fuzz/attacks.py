"""Bodies that have ended vLLM's server or its engine, or have kept all others waiting; each is a few kilobytes."""

from __future__ import annotations

import json
from typing import Any


def nested(depth: int) -> dict[str, Any]:
    """Objects in each other."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def _json(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", **fields}, separators=(",", ":")).encode()


# Name, route and body.
ATTACKS: dict[str, tuple[str, bytes]] = {
    "transfer parameters 600 deep": ("/v1/completions", _json(prompt="a", kv_transfer_params=nested(600))),
    "encoder parameters 600 deep": ("/v1/completions", _json(prompt="a", ec_transfer_params=nested(600))),
    "16.8 million sequences": ("/v1/completions", _json(prompt=["a"] * 1024, n=16384, max_tokens=1)),
    "6,000 empty inputs": ("/v1/responses", _json(input=[{}] * 6000)),
    "256,000 empty messages": ("/v1/chat/completions", _json(messages=[{}] * 256_000)),
    "5,000 empty parts": ("/v1/responses", _json(input=[{"role": "user", "content": [{}] * 5000}])),
}
