"""Prints what fits, in words and tables, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table

from posenc_runtime.vllm_adapter.checkpoint.sizing.cache import LayerCache
from server.deployment.gpus import GIB
from server.sizing.fit import Option, Size

LEFT_OUT = (
    "not counted: activations and CUDA graphs, which vLLM measures when it starts; what prefill keeps of windows for a "
    "moment; copies that crossings make of blocks; and what cached prefixes save. "
    "A lower engine.gpu_memory_utilization leaves room for them"
)


def lines(model: str, size: Size) -> Iterator[str | Table]:
    """What a person reads, in rich's markup."""
    yield (
        f"[bold]{escape(model)}[/] on {escape(size.gpu)} ({_gib(size.gpu_bytes)}, of which vLLM uses "
        f"{size.gpu_memory_utilization:g}): {size.concurrency} requests of {size.context:,} tokens at once, which end "
        f"at scale {size.scale}"
    )
    first = size.options[0]
    yield _cache_table(first, size.context)
    token = f"{_token_bytes(first.caches, size.context):,} bytes for each further token"
    yield f"KV cache: {token}, {_gib(first.request_bytes)} for a request"
    known = "unknown" if size.weights.num_bytes is None else _gib(size.weights.num_bytes)
    yield f"weights: {known} ({escape(size.weights.how)})"
    yield _options_table(size)
    yield _verdict(size)
    yield LEFT_OUT


def as_json(model: str, size: Size) -> str:
    """The same for programs; bytes are on each GPU, but those of all weights."""
    best = size.best
    said: dict[str, Any] = {
        "model": model,
        "gpu": size.gpu,
        "gpu_bytes": size.gpu_bytes,
        "gpu_memory_utilization": size.gpu_memory_utilization,
        "context": size.context,
        "concurrency": size.concurrency,
        "scale": float(size.scale),
        "weights": {"bytes": size.weights.num_bytes, "how": size.weights.how},
        "options": [_option(option, size.context) for option in size.options],
        "best": None if best is None else _option(best, size.context),
        "left_out": LEFT_OUT,
    }
    return json.dumps(said, indent=2)


def _option(option: Option, context: int) -> dict[str, Any]:
    return {
        "tensor_parallel_size": option.tensor_parallel_size,
        "kv_bytes_per_token": _token_bytes(option.caches, context),
        "request_bytes": option.request_bytes,
        "weight_bytes": option.weight_bytes,
        "cache_bytes": option.cache_bytes,
        "requests": option.requests,
        "replicas": option.replicas,
        "gpus": option.gpus,
        "layers": [
            {
                "kind": each.kind,
                "layers": each.layers,
                "bytes_per_token": each.token_bytes,
                "most_tokens": each.most_tokens,
                "state_bytes": each.state_bytes,
            }
            for each in option.caches
        ],
    }


def _cache_table(option: Option, context: int) -> Table:
    gpus = option.tensor_parallel_size
    table = Table(title="Cache" if gpus == 1 else f"Cache on each of {gpus} GPUs", title_justify="left")
    for heading in ("layers", "kind", "bytes a token and layer", "one request"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for each in option.caches:
        kind = each.kind if each.most_tokens is None else f"{each.kind} of {each.most_tokens:,} tokens"
        token = f"{each.arithmetic} = {each.token_bytes:,}" if each.token_bytes else "-"
        table.add_row(str(each.layers), kind, token, _gib(each.request_bytes(context)))
    return table


def _options_table(size: Size) -> Table:
    table = Table(title=f"What fits on {escape(size.gpu)}", title_justify="left")
    headings = (
        *("GPUs a replica", "weights on each", "left for the cache on each", "requests at once"),
        *(f"replicas for {size.concurrency}", "GPUs in all"),
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for option in size.options:
        table.add_row(
            str(option.tensor_parallel_size),
            "unknown" if size.weights.num_bytes is None else _gib(option.weight_bytes),
            _gib(option.cache_bytes) if option.cache_bytes > 0 else "none",
            str(option.requests),
            "-" if option.replicas is None else str(option.replicas),
            "-" if option.gpus is None else str(option.gpus),
            style="bold" if option == size.best else None,
        )
    return table


def _verdict(size: Size) -> str:
    best = size.best
    if best is None:
        return (
            "[bold]does not fit[/]: no replica has room for one request; take larger or more GPUs (also "
            "engine.pipeline_parallel_size), quantised weights, or shorter requests"
        )
    replicas = "1 replica" if best.replicas == 1 else f"{best.replicas} replicas"
    gpus = "1 GPU" if best.tensor_parallel_size == 1 else f"{best.tensor_parallel_size} GPUs"
    without = " of the cache alone, because the weights are unknown" if size.weights.num_bytes is None else ""
    return f"[bold]{replicas} of {gpus}[/] (engine.tensor_parallel_size {best.tensor_parallel_size}){without}"


def _token_bytes(caches: tuple[LayerCache, ...], context: int) -> int:
    """What each further token of a request of this length takes: in layers that keep all of it."""
    return sum(each.layers * each.token_bytes for each in caches if (each.most_tokens or context) >= context)


def _gib(num_bytes: int) -> str:
    gibibytes = num_bytes / GIB
    return f"{num_bytes / 2**20:.1f} MiB" if gibibytes < 0.1 else f"{gibibytes:.1f} GiB"
