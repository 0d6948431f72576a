"""What vLLM's server gets from the plugin, all of it together."""

from __future__ import annotations

from fastapi.testclient import TestClient

from server.app.plugin import EndpointPlugin
from tests.server.app.edge.test_listeners import application


def test_a_refusal_of_a_server_that_drains_has_the_name_of_its_request() -> None:
    app, plugin = application({}), EndpointPlugin()
    plugin.attach_router(app)
    plugin._draining.active = True
    answer = TestClient(app).post("/v1/completions", headers={"X-Request-Id": "abc"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (503, "abc")
