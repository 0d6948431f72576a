"""Completes vLLM's front end: checks requests, puts scales into answers, and asks workers what they measured."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from posenc_runtime.kv.budget import Budget, Speed, given, measured
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import compat
from posenc_runtime.vllm_adapter.attention.layer_groups import LayerGroup, layer_groups
from posenc_runtime.vllm_adapter.http.constraints import blame_constraints
from posenc_runtime.vllm_adapter.http.requests import check_requests, refuse_several, set_default_max_tokens
from posenc_runtime.vllm_adapter.http.responses import announce_scales, announce_stopped
from posenc_runtime.vllm_adapter.metrics import prometheus

_LAST_ANSWERS_SECONDS = 10  # for clients to read the ends of their answers, after the engine has stopped


def attach(engine: Any, state: Any, deployment: Deployment, ended: Callable[[bool], None]) -> None:
    """Add our checks and reports to a server of vLLM.

    Args:
        engine: vLLM's client of a running engine.
        state: ``app.state``, as endpoint plugins get it.
        ended: called once, when the engine is stopped, with whether it had ended by itself before.

    Raises:
        IncompatibleVllm: when vLLM lacks a name that we touch.
    """
    compat.verify_server()
    if not deployment.changes_scales:
        announce_stopped(engine, deployment)
    if len(deployment.scales) > 1:
        refuse_several(state)
        if deployment.on_crossing == "pin":
            set_default_max_tokens(state, deployment)
    check_requests(deployment)
    blame_constraints(engine)
    announce_scales(state)
    _end_answers(engine, state, ended)


async def attention_layers(engine: Any) -> list[LayerGroup]:
    """Which backend attends in each layer of a running engine, as its workers report it."""
    workers = await engine.collective_rpc("posenc_attention")
    return layer_groups((name, backend, encoding) for layers in workers for name, backend, encoding in layers)


async def rerotate_budget(engine: Any, deployment: Deployment) -> Budget | None:
    """How many cached tokens a running engine re-rotates before a step at most, and why; None where it re-rotates none.

    Workers report the speed that they reported to the scheduler. Of several parallel engines, one is asked.
    """
    if not deployment.rerotates:
        return None
    if deployment.rerotate_budget_tokens is not None:
        return given(deployment.rerotate_budget_tokens)
    return measured([Speed(**told) for told in await engine.collective_rpc("posenc_speed")])


def show_attention(engine: Any, groups: list[LayerGroup]) -> None:
    """Show in a metric which backend attends in which layers, for each engine that this server manages.

    These may be some of many engines that serve in parallel.
    """
    prometheus.show_attention(groups, engine.model_config.served_model_name, engine.engine_core.engine_ranks_managed)


def registry() -> CollectorRegistry:
    """The registry of the metrics; where vLLM has several API servers, it has the metrics of all of them."""
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    found: CollectorRegistry = get_prometheus_registry()
    return found


def _end_answers(engine: Any, state: Any, ended: Callable[[bool], None]) -> None:
    """When the engine is stopped, end its requests with what they have said so far.

    vLLM's engine reports its requests as aborted and is killed at once. Without us, the server would wait for reports
    that the engine had no time to send, and for clients that do not read.
    """
    stock, loop, told = engine.shutdown, asyncio.get_running_loop(), [ended]

    @functools.wraps(stock)
    def shutdown(*args: Any, **kwargs: Any) -> None:
        while told:
            told.pop()(bool(engine.errored))
        stock(*args, **kwargs)
        # vLLM calls this from another thread than the event loop's, or when the loop has ended.
        if loop.is_running():
            loop.call_soon_threadsafe(end)

    def end() -> None:
        config = getattr(getattr(state, "server", None), "config", None)
        if config is not None and config.timeout_graceful_shutdown is None:
            config.timeout_graceful_shutdown = _LAST_ANSWERS_SECONDS
        requests = engine.output_processor
        requests.abort_requests(list(requests.request_states), internal=True)

    engine.shutdown = shutdown
