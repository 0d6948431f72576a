"""Our own route in vLLM's API server: what the deployment's scales are, and what runs at them now."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from posenc_runtime.kv.budget import Budget
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.metrics.names import Metric

_LIVE = {
    "requests": Metric.REQUESTS,
    "prompt_tokens": Metric.PROMPT_TOKENS,
    "generation_tokens": Metric.GENERATION_TOKENS,
    "prefix_hit_tokens": Metric.PREFIX_HIT_TOKENS,
    "kv_blocks": Metric.KV_BLOCKS,
}


class Live(BaseModel):
    """Counts of one scale since the server started. ``kv_blocks`` is what running requests hold now."""

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_hit_tokens: int = 0
    kv_blocks: int = 0


class Scale(BaseModel):
    """One scale. A request at this scale may have ``max_request_tokens`` tokens, prompt and answer together.

    ``live`` is null if vLLM keeps no counts (``disable_log_stats``).
    """

    scale: float
    max_request_tokens: int
    live: Live | None


class Scales(BaseModel):
    """The answer of ``GET /posenc/scales``.

    ``rerotate_budget_tokens`` is the most cached tokens that are re-rotated before a step;
    ``rerotate_budget_reason`` says why. Both are null if this deployment re-rotates no keys.
    """

    rope_type: str
    parameters: dict[str, Any]
    original_max_position_embeddings: int
    max_model_len: int
    headroom_tokens: int
    on_crossing: str
    prefix_reuse: str
    rerotate_budget_tokens: int | None
    rerotate_budget_reason: str | None
    scales: list[Scale]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """What our route shows of a running engine, at ``app.state.posenc``.

    Attributes:
        max_model_len: longest request that its cache has room for, tokens; the deployment's, or less.
        registry: the registry of its metrics; where there are several API servers, of all of them.
        budget: cached tokens re-rotated before a step at most; None where none are re-rotated.
    """

    deployment: Deployment
    max_model_len: int
    registry: CollectorRegistry
    budget: Budget | None = None


def scales_router() -> APIRouter:
    """``GET /posenc/scales``; the live state is read from the same counters as ``/metrics``."""
    router = APIRouter(tags=["posenc"])

    @router.get("/posenc/scales")
    def scales(request: Request) -> Scales:
        served: Served | None = getattr(request.app.state, "posenc", None)
        if served is None:
            raise HTTPException(
                404, "this server has no scales, because it was started without additional_config.posenc"
            )
        deployment, budget = served.deployment, served.budget
        return Scales(
            rope_type=deployment.rope_type,
            parameters=dict(deployment.parameters),
            original_max_position_embeddings=deployment.original_max_position_embeddings,
            max_model_len=served.max_model_len,
            headroom_tokens=deployment.headroom_tokens,
            on_crossing=deployment.on_crossing,
            prefix_reuse=deployment.prefix_reuse,
            rerotate_budget_tokens=budget.tokens if budget else None,
            rerotate_budget_reason=budget.reason if budget else None,
            scales=list(_scales(served)),
        )

    return router


def _scales(served: Served) -> Iterator[Scale]:
    metrics = list(served.registry.collect())
    samples = [sample for metric in metrics for sample in metric.samples]
    is_counted = not {name.removesuffix("_total") for name in _LIVE.values()}.isdisjoint(m.name for m in metrics)
    scale_set = served.deployment.scale_set
    for index, (scale, length) in enumerate(zip(scale_set.scales, scale_set.lengths, strict=True)):
        label = scale_set.label(index)
        live = {
            field: sum(int(s.value) for s in samples if s.name == name and s.labels.get("scale") == label)
            for field, name in _LIVE.items()
        }
        yield Scale(
            scale=scale, max_request_tokens=min(length, served.max_model_len), live=Live(**live) if is_counted else None
        )
