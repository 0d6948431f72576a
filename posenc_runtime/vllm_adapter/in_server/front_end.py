"""Completes vLLM's front end: checks requests, puts scales into answers, asks workers what they measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from posenc_runtime.kv.budget import Budget, Speed, given_budget, measured_budget, smallest_budget
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.in_server.blame import blame_constraints, fail_without_numbers, log_no_client_errors
from posenc_runtime.vllm_adapter.in_server.fetching import refuse_fetching
from posenc_runtime.vllm_adapter.in_server.requests import check_requests, set_default_max_tokens
from posenc_runtime.vllm_adapter.in_server.responses import announce_choices, announce_scales, announce_stopped
from posenc_runtime.vllm_adapter.in_server.spans import announce_in_spans
from posenc_runtime.vllm_adapter.in_server.stopping import Draining, drain_before_stop
from posenc_runtime.vllm_adapter.metrics import prometheus
from posenc_runtime.vllm_adapter.metrics.layer_groups import LayerGroup, layer_groups


def attach(engine: Any, state: Any, deployment: Deployment, draining: Draining, ended: Callable[[bool], None]) -> None:
    """Add our checks and reports to a server of vLLM.

    Args:
        engine: vLLM's client of a running engine.
        state: ``app.state``, as endpoint plugins get it.
        draining: of this server; the engine is stopped once it has drained.
        ended: called once, when the engine is stopped, with whether it had ended by itself before.

    Raises:
        IncompatibleVllm: when vLLM lacks a name that we touch.
    """
    releases.verify_server()
    if not deployment.changes_scales:
        announce_stopped(engine, deployment)
    if len(deployment.scales) > 1 and deployment.on_crossing == "pin":
        set_default_max_tokens(state, deployment)
    check_requests(deployment)
    blame_constraints(engine)
    refuse_fetching()
    log_no_client_errors()
    announce_choices()
    announce_scales(state)
    announce_in_spans(engine, deployment)
    fail_without_numbers(engine)
    drain_before_stop(engine, draining, ended)


def has_chat_template(engine: Any) -> bool:
    """Whether the tokenizer of a running engine makes prompts of chats: by a template, or as Mistral's by itself."""
    try:
        tokenizer = engine.get_tokenizer()
    except ValueError:  # skip_tokenizer_init: there is none
        return False
    return not hasattr(tokenizer, "chat_template") or bool(tokenizer.chat_template)


async def attention_layers(engine: Any) -> list[LayerGroup]:
    """Which backend attends in each layer of a running engine, as its workers report it."""
    workers = await engine.collective_rpc("posenc_attention")
    return layer_groups((name, backend, encoding) for layers in workers for name, backend, encoding in layers)


async def warm_up(engine: Any) -> None:
    """Have the workers of a running engine compile what the first requests would compile."""
    await engine.collective_rpc("posenc_warm_up")


async def rerotate_budget(engine: Any, deployment: Deployment) -> Budget | None:
    """How many cached tokens a running engine re-rotates before a step at most, and why; None where it re-rotates none.

    Workers report the speed that they reported to the scheduler. Each of several parallel engines has measured a budget
    of its own, and the smallest is told here.
    """
    if not deployment.rerotates:
        return None
    if deployment.rerotate_budget_tokens is not None:
        return given_budget(deployment.rerotate_budget_tokens)
    # vLLM's collective_rpc asks all engines, and gives the answers of the first.
    core = engine.engine_core
    asked = (
        core._call_utility_async("collective_rpc", "posenc_speed", None, (), None, engine=each)
        for each in core.core_engines
    )
    return smallest_budget(
        [measured_budget([Speed(**told) for told in workers]) for workers in await asyncio.gather(*asked)]
    )


def show_attention(engine: Any, groups: list[LayerGroup]) -> None:
    """Show in a metric which backend attends in which layers, for each engine that this server manages.

    These may be some of many engines that serve in parallel.
    """
    prometheus.show_attention(groups, engine.model_config.served_model_name, engine.engine_core.engine_ranks_managed)


def show_strategy(engine: Any, deployment: Deployment) -> None:
    """Show the deployment's strategy in a metric, if no connector shows it."""
    if deployment.turns_queries:
        prometheus.show_strategy(
            deployment, engine.model_config.served_model_name, engine.engine_core.engine_ranks_managed
        )


def readiness(engine: Any) -> Callable[[bool], None]:
    """A function that shows, in a metric, whether this server takes requests."""
    return prometheus.readiness(engine.model_config.served_model_name)


def registry() -> CollectorRegistry:
    """The registry of the metrics; where vLLM has several API servers, it has the metrics of all of them."""
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    found: CollectorRegistry = get_prometheus_registry()
    return found
