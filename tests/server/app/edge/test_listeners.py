"""Metrics and administration at addresses of their own."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import pathlib
import socket
import ssl
import types
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from posenc_runtime.vllm_adapter.contract.errors import CannotListen
from server.app.edge.installation import install
from tests.benchmarks.servers import free_port
from tests.server.app.edge import certificates

KEY = {"Authorization": "Bearer good"}
PATHS = ("/health", "/v1/models", "/metrics", "/pause", "/nothing")


def application(access: dict[str, Any]) -> FastAPI:
    app = FastAPI()
    for path in PATHS[:-1]:
        app.add_api_route(path, lambda: "answered", methods=["GET"])
    app.state.args = argparse.Namespace(
        additional_config={"posenc": {}, "posenc_access": access},
        **{"api_key": ["good"], "allowed_origins": [], "api_server_count": None, "uvicorn_log_level": "warning"},
        **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ciphers", "served_model_name")),
        model="tiny",
        ssl_cert_reqs=0,
    )
    return app


def served(
    access: dict[str, Any],
    ask: Callable[[httpx.AsyncClient], Awaitable[Any]],
    certificate: tuple[pathlib.Path, pathlib.Path] | None = None,
) -> Any:
    """What ``ask`` returns while the application listens; then its own server ends, and so do the listeners."""

    async def run() -> Any:
        app = application(access)
        if certificate:
            app.state.args.ssl_certfile, app.state.args.ssl_keyfile = map(str, certificate)
        edge = install(app)
        app.state.server = types.SimpleNamespace(should_exit=False)
        edge.listen()
        tasks = list(edge._tasks)
        trusted = ssl.create_default_context(cafile=certificate[0] if certificate else None)
        transport = httpx.AsyncHTTPTransport(retries=3, verify=trusted)
        async with httpx.AsyncClient(transport=transport) as client:
            found = await ask(client)
        app.state.server.should_exit = True
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        return found

    return asyncio.run(run())


async def statuses(client: httpx.AsyncClient, address: str, headers: dict[str, str]) -> dict[str, int]:
    return {path: (await client.get(f"http://{address}{path}", headers=headers)).status_code for path in PATHS}


def test_an_address_of_metrics_lets_in_those_who_ask_for_metrics_and_nothing_else() -> None:
    address = f"127.0.0.1:{free_port()}"

    async def ask(client: httpx.AsyncClient) -> Any:
        return [await statuses(client, address, headers) for headers in ({}, KEY)]

    without, with_key = served({"metrics": address}, ask)
    assert without == {"/health": 200, "/metrics": 200, "/v1/models": 401, "/pause": 401, "/nothing": 401}
    assert with_key == {"/health": 200, "/metrics": 200, "/v1/models": 404, "/pause": 404, "/nothing": 404}


def test_an_address_of_administration_is_local_or_asks_for_an_administrator() -> None:
    address = f"127.0.0.1:{free_port()}"

    async def ask(client: httpx.AsyncClient) -> Any:
        return [(await client.get(f"http://{address}/pause", headers=headers)).status_code for headers in ({}, KEY)]

    assert served({"administration": address}, ask) == [200, 200]
    assert served({"administration": address, "administrators": ["ops"]}, ask) == [401, 403]
    good = f"key-{hashlib.sha256(b'good').hexdigest()[:8]}"
    assert served({"administration": address, "administrators": [good]}, ask) == [401, 200]


def test_one_address_may_have_both() -> None:
    address = f"127.0.0.1:{free_port()}"

    async def ask(client: httpx.AsyncClient) -> Any:
        return await statuses(client, address, {})

    found = served({"metrics": address, "administration": address}, ask)
    assert (found["/metrics"], found["/pause"], found["/v1/models"]) == (200, 200, 401)


def test_an_answer_has_security_headers_and_no_name_of_a_server() -> None:
    address = f"127.0.0.1:{free_port()}"

    async def ask(client: httpx.AsyncClient) -> Any:
        return [(await client.get(f"http://{address}{path}")).headers for path in ("/metrics", "/pause")]

    for headers in served({"metrics": address}, ask):
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer" and "server" not in headers


def test_where_the_server_has_a_certificate_an_address_speaks_tls_with_it(tmp_path: pathlib.Path) -> None:
    address = f"127.0.0.1:{free_port()}"

    async def ask(client: httpx.AsyncClient) -> Any:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://{address}/metrics")
        return (await client.get(f"https://{address}/metrics")).json()

    assert served({"metrics": address}, ask, certificates.made(tmp_path)) == "answered"


def test_an_error_of_the_router_has_the_shape_of_openais() -> None:
    app = application({})
    install(app)
    client = TestClient(app)
    for method, path, status, message in (
        ("GET", "/nothing", 404, "Not Found"),
        ("PUT", "/v1/models", 405, "Method Not Allowed"),
    ):
        answer = client.request(method, path, headers=KEY)
        error = {"message": message, "type": message, "param": None, "code": status}
        assert (answer.status_code, answer.json()) == (status, {"error": error})
    assert answer.headers["Allow"] == "GET"


def test_an_address_that_is_taken_is_refused_by_its_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotListen, match=f"access.metrics: must be a free address, got {address}: Address alr"):
            install(application({"metrics": address}))


def test_vllms_own_keys_are_asked_for_everywhere_and_vllm_is_left_none_to_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "in-the-environment")
    app = application({})
    assert install(app).asks_for_key
    assert [key for key in app.state.args.api_key if key] == [] and app.state.args.api_key
    app = application({})
    app.state.args.api_key = None
    assert install(app).asks_for_key and app.state.args.api_key == [""]
    monkeypatch.delenv("VLLM_API_KEY")
    app = application({})
    app.state.args.api_key = None
    assert not install(app).asks_for_key
