"""Requests to a small application, with and without keys, by every trick with paths that we know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route
from starlette.websockets import WebSocketDisconnect

from posenc_runtime.vllm_adapter.settings.api_keys import ApiKey
from posenc_runtime.vllm_adapter.settings.front_end import AccessSettings
from server.app.edge.access import KEY, AccessMiddleware
from server.app.edge.installation import own_gate
from server.app.edge.keyring import Keyring
from server.app.edge.route_classes import CLASSES

KEYS = Keyring([ApiKey.of("good", "alice"), ApiKey.of("better", "ops")])
GOOD, BETTER, WRONG = ({"Authorization": f"Bearer {key}"} for key in ("good", "better", "wrong"))


def application(keys: Keyring = KEYS, **access: Any) -> FastAPI:
    app = FastAPI()

    async def answer() -> str:
        return "answered"

    for template in ("/health", "/metrics", "/v1/models", "/v1/responses/{response_id}", "/is_sleeping", "/new"):
        app.add_api_route(template, answer, methods=["GET"])
    for template in ("/v1/chat/completions", "/pause"):
        app.add_api_route(template, answer, methods=["POST"])
    app.router.routes.append(Mount("/metrics", PlainTextResponse("metrics")))
    app.router.routes.append(Mount("/mounted", routes=[Route("/v1/models", PlainTextResponse("mounted"))]))
    app.router.routes.append(Host("other.example", Starlette(routes=[Route("/any", PlainTextResponse("host"))])))

    @app.websocket("/v1/realtime")
    async def realtime(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(websocket.scope.get(KEY, "nobody"))
        await websocket.close()

    settings = AccessSettings(**access)
    app.add_middleware(
        AccessMiddleware,
        routes=app.router.routes,
        classes=CLASSES,
        gate=own_gate(settings),
        keys=keys,
        administrators=settings.administrators,
    )
    return app


def status(app: FastAPI, method: str, path: str, headers: Mapping[str, str] | None = None) -> int:
    return asyncio.run(status_of(app, method, path, headers))


async def status_of(app: FastAPI, method: str, path: str, headers: Mapping[str, str] | None = None) -> int:
    """The status of an answer to a path as it stands: clients of HTTP tidy paths up."""
    sent: list[Any] = []
    path, _, query = path.partition("?")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http"},
        **{"path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": ""},
        "headers": [(b"host", b"server"), *((n.lower().encode(), v.encode()) for n, v in (headers or {}).items())],
        **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)},
    }
    await app(scope, receive, send)
    code: int = sent[0]["status"]
    return code


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(application()) as client:
        yield client


def test_liveness_needs_no_key(client: TestClient) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/health", headers=WRONG).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/responses/abc"])
def test_other_routes_need_a_key_and_the_error_is_openais(client: TestClient, path: str) -> None:
    for headers, header, message in (
        ({}, "Bearer", "an API key is needed: send it as Authorization: Bearer KEY"),
        (WRONG, 'Bearer error="invalid_token"', "the API key is not known to this server"),
    ):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == header
        error = {"message": message, "type": "Unauthorized", "param": None, "code": 401}
        assert answer.json() == {"error": error}
    assert client.get(path, headers=GOOD).text in ('"answered"', "metrics")
    assert client.get(path, headers={"x-api-key": "good"}).status_code == 200


TRICKS = [
    *("//v1/models", "/v1//models", "/v1/models/", "/V1/models", "/v1/../metrics", "/health/../metrics"),
    *("/v1%2fmodels", "/%76%31/models", "/health/../v1/models", "/health/..;/v1/models", "/health;/v1/models"),
    *("/health%2f..%2fv1/models", "/health\\..\\v1\\models", "/./v1/models", "/v1/models.json", "/v1/models%00"),
    *("/health/", "/health//", "/healthz", "/metrics/../health"),
    *("/metrics/", "/metrics/anything", "/metrics/%2e%2e/health", "metrics", "", "*", "http://server/metrics"),
    *("/mounted/v1/models", "/new", "/pause", "/is_sleeping", "/nothing", "/openapi.json"),
]


def test_no_trick_with_a_path_or_a_method_gets_past_the_key() -> None:
    app = application()

    async def answered() -> dict[tuple[str, str], set[int]]:
        return {
            (method, path): {await status_of(app, method, path, headers) for headers in ({}, WRONG)}
            for method in ("GET", "HEAD", "OPTIONS", "POST", "TRACE", "get")
            for path in TRICKS
        }

    assert {trick: codes for trick, codes in asyncio.run(answered()).items() if codes != {401}} == {}


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE"])
def test_another_method_needs_the_key_too(client: TestClient, method: str) -> None:
    assert client.request(method, "/v1/models").status_code == 401
    assert client.request(method, "/v1/models", headers=GOOD).status_code == 405


def test_a_root_path_changes_nothing() -> None:
    app = application()
    app.root_path = "/proxy"
    for path in ("/proxy/health", "/health", "/proxy/health?x"):
        assert status(app, "GET", path) == 200
    for path in ("/proxy/v1/models", "/v1/models", "/proxy/metrics", "/proxyhealth", "/proxy", "/proxy/proxy/health"):
        assert status(app, "GET", path) == 401
    assert status(app, "GET", "/proxy/v1/models", GOOD) == 200


def test_administration_is_off_and_says_so_only_to_those_with_a_key(client: TestClient) -> None:
    assert client.post("/pause").status_code == 401
    answer = client.post("/pause", headers=GOOD)
    error = {"message": "this route is not served here", "type": "Not Found", "param": None, "code": 404}
    assert answer.status_code == 404 and answer.json() == {"error": error}


def test_without_any_keys_inference_is_open_and_administration_still_off() -> None:
    with TestClient(application(Keyring())) as client:
        for path in ("/v1/models", "/metrics", "/health"):
            assert client.get(path).status_code == 200
        assert client.post("/v1/chat/completions").status_code == 200
        asked = [client.post("/pause"), client.get("/pause"), client.get("/is_sleeping")]
        assert [answer.status_code for answer in asked] == [404] * 3


def test_a_key_that_administers_is_another_than_one_that_asks() -> None:
    with TestClient(application(administration="key", administrators=["ops"])) as client:
        assert client.post("/pause").status_code == 401
        refused = client.post("/pause", headers=GOOD)
        assert refused.status_code == 403
        assert refused.json()["error"]["message"] == "the key alice may not administer this server"
        assert client.post("/pause", headers=BETTER).status_code == 200
        assert client.get("/v1/models", headers=BETTER).status_code == 200


def test_administration_by_key_lets_nobody_in_where_there_are_no_keys() -> None:
    with TestClient(application(Keyring(), administration="key", administrators=["ops"])) as client:
        assert client.post("/pause").status_code == 401
        assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    ("setting", "without", "with_key"),
    [("key", 401, 200), ("open", 200, 200), ("off", 401, 404), ("127.0.0.1:9", 401, 404)],
)
def test_metrics_are_for_those_that_the_setting_names(setting: str, without: int, with_key: int) -> None:
    with TestClient(application(metrics=setting)) as client:
        assert client.get("/metrics").status_code == without
        assert client.get("/metrics/any", headers=GOOD).status_code == with_key


@pytest.mark.parametrize(("path", "name"), [("/new", "/new"), ("/mounted/v1/models", "/mounted"), ("/any", "Host")])
def test_a_route_of_no_class_is_closed_and_logged_once(path: str, name: str, said: list[str]) -> None:
    host = {"Host": "other.example"} if name == "Host" else {}
    with TestClient(application()) as client:
        assert client.get(path, headers=host).status_code == 401
        assert [client.get(path, headers=GOOD | host).status_code for _ in range(3)] == [404] * 3
    assert [message.split()[0] for message in said] == [name]


def test_routes_that_come_later_are_looked_at_too() -> None:
    app = application()
    with TestClient(app) as client:
        assert client.get("/load", headers=GOOD).status_code == 404
        app.add_api_route("/load", lambda: "load", methods=["GET"])
        assert client.get("/load").status_code == 401
        assert client.get("/load", headers=GOOD).status_code == 200


def test_a_websocket_needs_the_key_before_it_opens(client: TestClient) -> None:
    with client.websocket_connect("/v1/realtime", headers=GOOD) as websocket:
        assert websocket.receive_text() == "alice"
    for headers in ({}, WRONG):
        with (
            pytest.raises(WebSocketDisconnect),
            client.websocket_connect("/v1/realtime", headers=headers) as websocket,
        ):
            websocket.receive_text()


def test_the_name_of_the_key_is_in_the_scope_and_nowhere_else() -> None:
    seen: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope.get(KEY))
        await PlainTextResponse("")(scope, receive, send)

    app = application()
    for keys in (KEYS, Keyring()):
        middleware = AccessMiddleware(
            inner, routes=app.router.routes, classes=CLASSES, gate=own_gate(AccessSettings()), keys=keys
        )
        TestClient(middleware).get("/v1/models", headers=GOOD | {KEY: "forged"})
    assert seen == ["alice", None]
