"""A server with our page and no engine: its answers take no model, and its counters are those that a test sets."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_worker.rotary.wavelengths import Rotation
from server.app.page_routes import add_page
from server.app.routes import Served, data_router

YARN = Deployment(
    rope_type="yarn",
    scales=(1.0, 2.0, 4.0, 8.0),
    original_max_position_embeddings=512,
    max_model_len=4096,
    headroom_tokens=64,
)
ONE_SCALE = Deployment(rope_type="default", original_max_position_embeddings=512, max_model_len=512)
TURNED = Deployment(rope_type="rerope", original_max_position_embeddings=512, max_model_len=4096)
UNROTATED = Deployment(
    rope_type="none", original_max_position_embeddings=512, max_model_len=4096, allow_beyond_trained=True
)


def turns(deployment: Deployment, num_pairs: int = 32) -> list[Rotation]:
    """A rotation for each scale, in which slow pairs are slowed down by the scale."""
    if not deployment.rotates:
        return []
    own = [2 * math.pi * 10000 ** (pair / num_pairs) for pair in range(num_pairs)]
    trained = deployment.original_max_position_embeddings
    return [
        Rotation(
            attention_factor=1 + 0.1 * math.log(scale),
            wavelengths=tuple(length * (scale if length > trained / 4 else 1) for length in own),
        )
        for scale in deployment.scales
    ]


class Counters:
    """The metrics that the page reads, of one engine."""

    def __init__(self, registry: CollectorRegistry, labels: list[str]) -> None:
        def counter(name: str, *names: str) -> Counter:
            return Counter(name, name, names, registry=registry)

        def times(name: str) -> Histogram:
            return Histogram(name, name, buckets=(0.001, 0.01, 0.1, 1.0, 10.0), registry=registry)

        self.requests = counter("posenc_requests", "scale")
        self.prompt_tokens = counter("posenc_prompt_tokens", "scale")
        self.generation_tokens = counter("posenc_generation_tokens", "scale")
        self.prefix_hit_tokens = counter("posenc_prefix_hit_tokens", "scale")
        self.kv_blocks = Gauge("posenc_kv_blocks", "", ["scale"], registry=registry)
        self.prefill_tokens = Gauge("posenc_prefill_tokens", "", ["state"], registry=registry)
        self.crossings = counter("posenc_crossings", "from", "to", "how")
        self.rerotated_tokens = counter("posenc_rerotated_tokens")
        self.running = Gauge("vllm:num_requests_running", "", registry=registry)
        self.waiting = Gauge("vllm:num_requests_waiting", "", registry=registry)
        self.usage = Gauge("vllm:kv_cache_usage_perc", "", registry=registry)
        self.first_token = times("vllm:time_to_first_token_seconds")
        self.between_tokens = times("vllm:inter_token_latency_seconds")
        for label in labels:
            for metric in (self.requests, self.prompt_tokens, self.generation_tokens, self.prefix_hit_tokens):
                metric.labels(label)
            self.kv_blocks.labels(label).set(0)
        for source, target in itertools.pairwise(labels):
            self.crossings.labels(source, target, "rerotate")


@dataclasses.dataclass
class Fake:
    """A server to be.

    Attributes:
        deployment: what it says that it serves; None where its engine has none.
        counts: whether it counts anything, which vLLM does not with ``disable_log_stats``.
        key: the key that all routes want but those of the page; None where they want none.
        token_seconds: time from one token of an answer to the next.
        prompt_seconds: time in which half of a prompt is read, before the first token.
        text: what each token of an answer is.
        has_template: whether its model has a chat template.
    """

    deployment: Deployment | None = YARN
    counts: bool = True
    key: str | None = None
    token_seconds: float = 0.002
    prompt_seconds: float = 0.0
    model: str = "demo"
    text: str = " and"
    has_template: bool = True
    requests: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def app(self) -> FastAPI:
        app, registry = FastAPI(), CollectorRegistry()
        app.include_router(data_router())
        add_page(app)
        if self.deployment is not None:
            scale_set = self.deployment.scale_set
            labels = [scale_set.label(index) for index in range(len(scale_set.scales))]
            self.counters = Counters(registry if self.counts else CollectorRegistry(), labels)
            app.state.posenc = Served(
                deployment=self.deployment,
                max_model_len=self.deployment.max_model_len,
                registry=registry,
                model=self.model,
                has_chat_template=self.has_template,
                rotations=turns(self.deployment),
            )
        app.middleware("http")(self._guarded)
        app.post("/v1/completions")(self._complete)
        app.post("/v1/chat/completions")(self._chat)
        app.get("/v1/models")(lambda: {"data": [{"id": self.model}]})
        app.get("/metrics")(lambda: PlainTextResponse(generate_latest(registry)))
        return app

    async def _guarded(self, request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        is_open = request.url.path in ("/", "/docs") or request.url.path.startswith("/posenc/page/")
        if self.key and not is_open and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "a key is wanted", "code": 401}}, status_code=401)
        return await call(request)

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        asked = len(body["prompt"].split())
        if not body.get("stream"):
            return JSONResponse({"usage": {"prompt_tokens": asked}})
        return StreamingResponse(self._events(body, asked), media_type="text/event-stream")

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        if not self.has_template:
            return JSONResponse({"error": {"message": "you must provide a chat template"}}, status_code=400)
        prompt = " ".join(message["content"] for message in body["messages"])
        self.requests.append(body)
        events = self._events({**body, "prompt": prompt}, len(prompt.split()), is_chat=True)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, body: dict[str, Any], asked: int, *, is_chat: bool = False) -> AsyncIterator[str]:
        assert self.deployment is not None
        lengths, scales = self.deployment.scale_set.lengths, self.deployment.scales
        admitted = asked + min(body["max_tokens"], self.deployment.headroom_tokens)
        index = self.deployment.scale_set.for_length(admitted)
        label, crossings = self.deployment.scale_set.label, []
        self.counters.requests.labels(label(index)).inc()
        self.counters.prompt_tokens.labels(label(index)).inc(asked)
        if self.prompt_seconds:
            self.counters.prefill_tokens.labels("computed").set(asked // 2)
            self.counters.prefill_tokens.labels("waiting").set(asked - asked // 2)
            await asyncio.sleep(self.prompt_seconds)
            self.counters.prefill_tokens.labels("computed").set(0)
            self.counters.prefill_tokens.labels("waiting").set(0)
        for done in range(1, body["max_tokens"] + 1):
            await asyncio.sleep(self.token_seconds)
            if asked + done > lengths[index]:
                crossings.append(
                    {"at": lengths[index], "from": scales[index], "to": scales[index + 1], "how": "rerotate"}
                )
                self.counters.crossings.labels(label(index), label(index + 1), "rerotate").inc()
                self.counters.rerotated_tokens.inc(lengths[index])
                index += 1
            self.counters.generation_tokens.labels(label(index)).inc()
            usage = {"prompt_tokens": asked, "completion_tokens": done}
            piece: dict[str, Any] = {"delta": {"content": self.text}} if is_chat else {"text": self.text}
            if done == body["max_tokens"]:
                piece["finish_reason"] = "length"
            yield _event({"choices": [piece], "usage": usage})
        report = {"rope_type": self.deployment.rope_type, "crossings": crossings}
        if self.deployment.turns_queries:
            report["tokens_past_trained"] = max(0, asked + done - self.deployment.original_max_position_embeddings)
        else:
            report |= {"scale": scales[index], "admission_tokens": admitted}
        yield _event({"choices": [], "kv_transfer_params": {"posenc": report}})
        yield "data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
