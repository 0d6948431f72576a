"""Our own routes in vLLM's API server that tell data: the deployment's scales, and what the page shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from posenc_runtime.kv.budget import Budget
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.regime import suffix
from posenc_runtime.vllm_adapter.in_worker.rotary.wavelengths import Rotation
from server.app.figures import Counts, Figures, figures
from server.printing.version import version_line

SCALES = "/posenc/scales"
LIVE = "/posenc/live"


class Scale(BaseModel):
    """One scale. A request at this scale may have ``max_request_tokens`` tokens, prompt and answer together.

    ``cache_salt_suffix`` is added to the ``cache_salt`` of requests that begin at this scale. ``live`` is null if vLLM
    keeps no counts (``disable_log_stats``).
    """

    scale: float
    max_request_tokens: int
    cache_salt_suffix: str
    live: Counts | None


class Distances(BaseModel):
    """How far away a query past the trained length sees keys, where queries turn; tokens.

    At least the latest ``window`` keys are at their trained distances. All others are at most ``farthest`` away. Keys
    of a ``page`` keep their order.
    """

    window: int
    page: int
    farthest: int


class Scales(BaseModel):
    """The answer of ``GET /posenc/scales``.

    ``rerotate_budget_tokens`` is the most cached tokens that are re-rotated before a step, of several engines the
    smallest; ``rerotate_budget_reason`` says why. Both are null if this deployment re-rotates no keys.
    ``distances`` is null if its method has scales.
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
    distances: Distances | None


class Turns(BaseModel):
    """What one scale does to queries and keys.

    ``wavelengths`` are the tokens that each rotated pair of a head takes for a full turn, the fastest first.
    """

    attention_factor: float
    wavelengths: list[float]


class Live(BaseModel):
    """The answer of ``GET /posenc/live``, which the page at ``/`` draws.

    ``has_chat_template`` says whether the server makes prompts of chats. ``labels`` are the names of the scales in
    ``/metrics``. ``rotations`` has an entry for each scale, and none if the model has no rotary embedding. ``figures``
    is null if vLLM keeps no counts (``disable_log_stats``).
    """

    version: str
    model: str
    has_chat_template: bool
    deployment: Scales
    labels: list[str]
    rotations: list[Turns]
    figures: Figures | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """What our routes show of a running engine, at ``app.state.posenc``.

    Attributes:
        max_model_len: longest request that its cache has room for, tokens; the deployment's, or less.
        registry: the registry of its metrics; where there are several API servers, of all of them.
        budget: cached tokens re-rotated before a step at most; None where none are re-rotated.
        model: the model's name in requests.
        has_chat_template: whether the server makes prompts of chats for this model.
        rotations: of each scale; none where the model has no rotary embedding.
        block_size: of its KV cache, tokens; None where that is not known.
    """

    deployment: Deployment
    max_model_len: int
    registry: CollectorRegistry
    budget: Budget | None = None
    model: str = ""
    has_chat_template: bool = False
    rotations: Sequence[Rotation] = ()
    block_size: int | None = None


def data_router() -> APIRouter:
    """``GET /posenc/scales`` and ``GET /posenc/live``; both read the same counters as ``/metrics``."""
    router = APIRouter(tags=["posenc"])

    @router.get(SCALES)
    def scales(request: Request) -> Scales:
        served = _served(request)
        return _scales(served, _figures(served))

    @router.get(LIVE)
    def live(request: Request) -> Live:
        served = _served(request)
        scale_set, found = served.deployment.scale_set, _figures(served)
        return Live(
            version=version_line(),
            model=served.model,
            has_chat_template=served.has_chat_template,
            deployment=_scales(served, found),
            labels=[scale_set.label(index) for index in range(len(scale_set.scales))],
            rotations=[
                Turns(
                    attention_factor=each.attention_factor,
                    wavelengths=[float(f"{value:.6g}") for value in each.wavelengths],
                )
                for each in served.rotations
            ],
            figures=found,
        )

    return router


def _served(request: Request) -> Served:
    """What the server serves.

    Raises:
        HTTPException: when its engine has no deployment.
    """
    served: Served | None = getattr(request.app.state, "posenc", None)
    if served is None:
        raise HTTPException(404, "this server has no scales, because it was started without additional_config.posenc")
    return served


def _figures(served: Served) -> Figures | None:
    return figures(sample for metric in served.registry.collect() for sample in metric.samples)


def _distances(served: Served) -> Distances | None:
    if not served.deployment.turns_queries:
        return None
    pages = served.deployment.pages(served.block_size)
    return Distances(window=pages.window, page=pages.page, farthest=pages.farthest)


def _scales(served: Served, counted: Figures | None) -> Scales:
    deployment, budget, scale_set = served.deployment, served.budget, served.deployment.scale_set
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
        distances=_distances(served),
        scales=[
            Scale(
                scale=scale,
                max_request_tokens=min(length, served.max_model_len),
                cache_salt_suffix=suffix(deployment, index),
                live=counted.by_scale.get(scale_set.label(index), Counts()) if counted else None,
            )
            for index, (scale, length) in enumerate(zip(scale_set.scales, scale_set.lengths, strict=True))
        ],
    )
