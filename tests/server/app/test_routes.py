"""``GET /posenc/scales``."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry, Counter, Gauge

from posenc_runtime.kv.budget import Budget
from posenc_runtime.kv.deployment import Deployment
from server.app.routes import Served, data_router

YARN = Deployment(
    rope_type="yarn",
    parameters={"beta_fast": 16.0},
    scales=(1.0, 2.5),
    original_max_position_embeddings=100,
    max_model_len=250,
)


def told(served: Served | None) -> Any:
    app = FastAPI()
    app.include_router(data_router())
    if served is not None:
        app.state.posenc = served
    with TestClient(app) as client:
        return client.get("/posenc/scales").json()


def test_where_nothing_is_counted_nothing_is_said_to_have_happened() -> None:
    body = told(Served(deployment=YARN, max_model_len=250, registry=CollectorRegistry()))
    assert [scale["live"] for scale in body["scales"]] == [None, None]
    assert (body["rerotate_budget_tokens"], body["rerotate_budget_reason"]) == (None, None)


def test_the_answer_joins_the_configuration_with_the_counters_of_every_engine() -> None:
    registry = CollectorRegistry()
    requests = Counter("posenc_requests", "", ["engine", "rope_type", "scale"], registry=registry)
    blocks = Gauge("posenc_kv_blocks", "", ["engine", "scale"], registry=registry)
    requests.labels("0", "yarn", "2.5").inc(3)
    requests.labels("1", "yarn", "2.5").inc(4)
    blocks.labels("0", "1").set(9)
    budget = Budget(tokens=640, reason="so long")
    body = told(Served(deployment=YARN, max_model_len=250, registry=registry, budget=budget))
    nothing = {"requests": 0, "prompt_tokens": 0, "generation_tokens": 0, "prefix_hit_tokens": 0, "kv_blocks": 0}
    assert body == {
        "rope_type": "yarn",
        "parameters": {"beta_fast": 16.0},
        "original_max_position_embeddings": 100,
        "max_model_len": 250,
        "headroom_tokens": 256,
        "on_crossing": "rerotate",
        "prefix_reuse": "exact",
        "rerotate_budget_tokens": 640,
        "rerotate_budget_reason": "so long",
        "distances": None,
        "scales": [
            {"scale": 1.0, "max_request_tokens": 100, "cache_salt_suffix": "", "live": nothing | {"kv_blocks": 9}},
            {
                "scale": 2.5,
                "max_request_tokens": 250,
                "cache_salt_suffix": f"~posenc:yarn:2.5:{YARN.fingerprint}",
                "live": nothing | {"requests": 7},
            },
        ],
    }


def test_scales_reach_no_further_than_the_cache_has_room_for() -> None:
    body = told(Served(deployment=YARN, max_model_len=180, registry=CollectorRegistry()))
    assert body["max_model_len"] == 180
    assert [scale["max_request_tokens"] for scale in body["scales"]] == [100, 180]


def test_an_engine_without_a_deployment_has_no_scales() -> None:
    assert told(None) == {
        "detail": "this server has no scales, because it was started without additional_config.posenc"
    }


def test_where_queries_turn_the_answer_has_the_distances_at_which_they_see_keys() -> None:
    turning = Deployment(
        rope_type="rerope",
        parameters={"window": 256, "page": 64},
        original_max_position_embeddings=512,
        max_model_len=4096,
    )
    body = told(Served(deployment=turning, max_model_len=4096, registry=CollectorRegistry()))
    assert body["distances"] == {"window": 256, "page": 64, "farthest": 318}
    assert [scale["max_request_tokens"] for scale in body["scales"]] == [4096]
