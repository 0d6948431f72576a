"""What a server prints when it takes requests: its address, its page, a request to paste, and where to read more."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator

from posenc_runtime.vllm_adapter.settings.addresses import is_address
from posenc_runtime.vllm_adapter.settings.front_end import AccessSettings
from server.app.routes import Served

READY = "ready"  # what the first line begins with
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_ANYWHERE = ("", "0.0.0.0", "::")  # addresses to listen at, but not to send requests to


def greeting(
    args: argparse.Namespace, model: str, served: Served, access: AccessSettings, *, asks_for_key: bool
) -> Iterator[str]:
    """The lines, the first of which begins with ``ready``.

    Args:
        args: vLLM's own.
        model: the model's name in requests.
        access: who may ask for what.
        asks_for_key: whether requests need an API key.
    """
    scale_set = served.deployment.scale_set
    address = _address(args)
    lengths = (min(length, served.max_model_len) for length in scale_set.lengths)
    told = [f"{scale_set.label(index)} up to {length:,}" for index, length in enumerate(lengths)]
    told[0] += " tokens"
    yield f"{READY}: {address or args.uds}"
    if served.deployment.turns_queries:
        trained = served.deployment.original_max_position_embeddings
        length, method = served.max_model_len, served.deployment.rope_type
        yield f"{method}: requests of up to {length:,} tokens, trained on {trained:,}"
    elif served.deployment.rotates:
        yield f"scale by request length: {', '.join(told)}"
    if address is None:
        return
    yield f"page: {address}/, scales now: {address}/posenc/scales{_metrics(address, access)}"
    if not asks_for_key and args.host not in _THIS_MACHINE:
        yield "this server asks for no key: everybody who reaches it may send requests; access.keys_file names keys"
    key = "" if not asks_for_key else " -H 'Authorization: Bearer YOUR_KEY'"
    body = json.dumps({"model": model, "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]})
    path = "/v1/chat/completions"
    yield f"try: curl -s {address}{path} -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}"


def _address(args: argparse.Namespace) -> str | None:
    """The server's address for clients on this machine; None where it listens at a Unix socket."""
    if args.uds is not None:
        return None
    host = "localhost" if args.host is None or args.host in _ANYWHERE else args.host
    scheme = "https" if args.ssl_certfile else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{args.port}"


def _metrics(address: str, access: AccessSettings) -> str:
    """Where metrics are, as the end of a line; nothing where they are off."""
    if access.metrics == "off":
        return ""
    where = f"{address.partition('://')[0]}://{access.metrics}" if is_address(access.metrics) else address
    return f", metrics: {where}/metrics"
