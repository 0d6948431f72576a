"""The salt that docs/operations.md tells gateways to compute is the one that the engine has."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from posenc_runtime.kv.admission import admit
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.regime import regime, salted
from server.app.routes import Served, data_router
from server.deployment import shipped
from server.deployment.load import load
from server.start_up.planning import plan_settings
from tests.pages import DOCS


def published(deployment: Deployment) -> dict[str, Any]:
    app = FastAPI()
    app.include_router(data_router())
    # The engine's cache may have room for less than the deployment's longest request.
    app.state.posenc = Served(deployment=deployment, max_model_len=1500, registry=CollectorRegistry())
    with TestClient(app) as client:
        found: dict[str, Any] = client.get("/posenc/scales").json()
        return found


def salt_by_the_docs(scales: dict[str, Any], num_prompt_tokens: int, body: dict[str, Any]) -> str:
    """Step by step as the page says."""
    new = body.get("max_completion_tokens", body.get("max_tokens"))
    may_cross = body.get("vllm_xargs", {}).get("posenc_on_crossing", scales["on_crossing"]) != "pin"
    if new is None or (new > scales["headroom_tokens"] and may_cross):
        new = scales["headroom_tokens"]
    trained = scales["original_max_position_embeddings"]
    covers = [each for each in scales["scales"] if each["scale"] * trained >= num_prompt_tokens + new]
    chosen = covers[0] if covers else scales["scales"][-1]
    return str(body.get("cache_salt", "") + chosen["cache_salt_suffix"])


@pytest.mark.parametrize("on_crossing", ["rerotate", "recompute", "pin"])
def test_a_gateway_that_follows_the_page_agrees_with_the_engine(on_crossing: Any) -> None:
    deployment = Deployment(
        rope_type="yarn", scales=(1.0, 2.0, 3.5, 8.0), original_max_position_embeddings=510, max_model_len=4000,
        headroom_tokens=64, on_crossing=on_crossing,
    )  # fmt: skip
    scales = published(deployment)
    for tokens, new, asked in itertools.product(
        (*range(1, 4001, 7), 446, 447, 956, 957), (None, 1, 63, 64, 65, 200, 4000), (None, "pin")
    ):
        body: dict[str, Any] = {} if new is None else {"max_tokens": new}
        if asked:
            body["vllm_xargs"] = {"posenc_on_crossing": asked}
        admission = admit(deployment, num_prompt_tokens=tokens, max_tokens=new, on_crossing=asked)
        name = regime(deployment, admission.scale_index)
        salt = salt_by_the_docs(scales, tokens, body | {"cache_salt": "tenant"})
        assert salt == salted("tenant", name) == salted(salt, name), (tokens, body)


def test_the_vectors_of_the_page_are_right() -> None:
    deployment = plan_settings(load(shipped.path_of("demo"), environment={})).deployment
    scales = published(deployment)
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    table = page.partition("| Prompt tokens | `max_tokens` |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == 8
    for line in table:
        tokens, new, asked, own, salt = (cell.strip().strip("`") for cell in line.strip("|").split("|"))
        body: dict[str, Any] = {"cache_salt": own} | ({"max_tokens": int(new)} if new else {})
        if asked:
            body["vllm_xargs"] = {"posenc_on_crossing": asked}
        assert salt_by_the_docs(scales, int(tokens), body) == salt, line
        admission = admit(
            deployment, num_prompt_tokens=int(tokens), max_tokens=int(new) if new else None, on_crossing=asked or None
        )
        assert (salted(own, regime(deployment, admission.scale_index)) or "") == salt, line
