"""A server with keys and with every route that vLLM can register, and plain vLLM with one flag."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED, installed_version
from tests.engine.route_table import KEYS, SMALL, Open, Row, bearer, every_route, table, written
from tests.engine.running_server import Server

ALICE, OPS, WRONG = bearer(KEYS["alice"]), bearer(KEYS["ops"]), bearer("wrong")
SAY = {"model": "tiny", "prompt": "a", "max_tokens": 1}
TABLE_OF = "0.32.0"  # the release of vLLM whose routes docs/security.md lists


@pytest.fixture(scope="module", params=[pytest.param("posenc", marks=pytest.mark.promise("keys")), "vllm"])
def server(request: pytest.FixtureRequest) -> Server:
    name: Server = request.param
    return name


@pytest.fixture(scope="module")
def opened(server: Server, tiny: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    settings = {
        "model": str(tiny),
        "served_model_name": "tiny",
        "scaling": {"rope_type": "yarn", "scales": [1, 2]},
        "engine": SMALL,
    }
    with every_route(tmp_path_factory.mktemp("open"), settings, server) as opened:
        yield opened


@pytest.fixture
def http(opened: Open) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=opened.address, timeout=120) as http:
        yield http


@pytest.fixture(scope="module")
def rows(opened: Open) -> list[Row]:
    return opened.rows()


def test_only_open_routes_let_in_whoever_has_no_key(rows: list[Row]) -> None:
    assert len(rows) > 40 and {row.its_class for row in rows} == {"open", "inference", "metrics", "administration"}
    expected = {
        "open": ("let in", "let in", "let in"),
        "inference": ("401", "401", "let in"),
        "metrics": ("401", "401", "let in"),
        "administration": ("401", "401", "404"),
    }
    assert [row for row in rows if row[2:] != expected[row.its_class]] == []


@pytest.mark.skipif(installed_version() != TABLE_OF, reason=f"the table has the routes of vLLM {TABLE_OF}")
def test_the_table_in_docs_is_what_the_server_answers(rows: list[Row]) -> None:
    assert TABLE_OF in SUPPORTED
    assert written() == table(rows), "make routes writes it"


def test_administration_is_for_its_administrators_at_its_own_address(opened: Open) -> None:
    with httpx.Client(base_url=opened.administration, timeout=60) as client:
        for headers, status in (({}, 401), (WRONG, 401), (ALICE, 403), (OPS, 200)):
            assert client.get("/is_paused", headers=headers).status_code == status
        assert client.post("/v1/completions", headers=OPS, json=SAY).status_code == 404
        assert client.get("/metrics", headers=OPS).status_code == 404
        assert client.get("/health").status_code == 200


def test_no_key_is_in_the_log_or_in_what_an_engine_is_told(opened: Open, http: httpx.Client) -> None:
    told = http.get("/v1/models", headers=ALICE).text
    with httpx.Client(base_url=opened.administration, headers=OPS, timeout=60) as client:
        told += client.get("/server_info?config_format=json").text
    assert str(opened.keys_file) in told
    told += opened.log.read_text(errors="replace")
    assert not [key for key in KEYS.values() if key in told]


def test_a_key_is_taken_where_openais_and_anthropics_clients_send_it(opened: Open) -> None:
    with openai.OpenAI(base_url=f"{opened.address}/v1", api_key=KEYS["alice"], max_retries=0) as client:
        assert client.completions.create(**SAY).usage is not None
    with (
        openai.OpenAI(base_url=f"{opened.address}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="the API key is not known to this server"),
    ):
        client.models.list()
    hello = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}
    with httpx.Client(base_url=opened.address, timeout=120) as claude:
        for key, status in ((KEYS["alice"], 200), ("wrong", 401)):
            assert claude.post("/v1/messages", json=hello, headers={"x-api-key": key}).status_code == status


RAW = [
    *("//v1/models", "/v1/models/", "/V1/models", "/v1/../metrics", "/health/../metrics", "/v1%2Fmodels", "/%6detrics"),
    *("/health;/../metrics", "/health%2f..%2fmetrics", "/metrics/", "/metrics/x", "/metricsx", "http://x/metrics", "*"),
    *("/openapi.json", "/static/../metrics", "/v1/models%00", "/v1/models?api_key=the-key-of-alice"),
]


async def _status(url: httpx.URL, method: str, target: str) -> str:
    """The status of an answer to a target that no client tidied up."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    await writer.drain()
    line = (await asyncio.wait_for(reader.readline(), 60)).decode()
    writer.close()
    await writer.wait_closed()
    return line.split(" ")[1] if line else "closed"


def test_no_spelling_of_a_path_gets_past_the_key(opened: Open) -> None:
    async def asked() -> dict[tuple[str, str], str]:
        url = httpx.URL(opened.address)
        return {(m, path): await _status(url, m, path) for m in ("GET", "HEAD", "OPTIONS", "POST") for path in RAW}

    found = asyncio.run(asked())
    assert {each: status for each, status in found.items() if status not in ("400", "401")} == {}


def test_a_page_of_another_origin_is_told_nothing(http: httpx.Client) -> None:
    foreign = {"Origin": "https://example.org"}
    preflight = foreign | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    answers = [http.get("/health", headers=foreign), http.options("/v1/models", headers=preflight)]
    assert [name for answer in answers for name in answer.headers if name == "access-control-allow-origin"] == []


def test_answers_have_security_headers_and_do_not_name_the_server(http: httpx.Client) -> None:
    time.sleep(1.1)  # the header with the name is left out within a second of the start
    for answer in (http.get("/health"), http.get("/nothing"), http.get("/v1/models", headers=ALICE)):
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and "server" not in answer.headers


BAD: list[tuple[str, str, Any]] = [
    ("POST", "/v1/completions", {}),
    ("POST", "/v1/completions", {"model": "none", "prompt": "a"}),
    ("POST", "/v1/completions", {"model": "/etc/passwd", "prompt": "a"}),
    ("POST", "/v1/completions", SAY | {"prompt": "a" * 9000}),
    ("POST", "/v1/completions", SAY | {"temperature": "hot"}),
    ("POST", "/v1/completions", SAY | {"prompt": {"a": 1}}),
    (
        "POST",
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    ),
    (
        "POST",
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ],
        },
    ),
    ("POST", "/v1/chat/completions", {"model": "tiny", "messages": [], "chat_template": "{% include '/etc/passwd' %}"}),
    ("POST", "/v1/responses", {"model": "tiny", "input": "a", "previous_response_id": "resp_x"}),
    ("GET", "/v1/responses/any", None),
    ("POST", "/tokenize", {"model": "tiny", "prompt": 1}),
    ("POST", "/detokenize", {"model": "tiny", "tokens": [10**12]}),
    ("POST", "/invocations", {"any": 1}),
    ("PUT", "/v1/models", None),
]


def test_errors_show_no_traceback_and_no_path(http: httpx.Client) -> None:
    shown = {}
    for number, (method, path, body) in enumerate(BAD):
        answer = http.request(method, path, json=body, headers=ALICE)
        assert answer.status_code >= 400 and answer.json()["error"]["message"], (path, body)
        shown[number] = answer.text
    shown[-1] = http.post("/v1/completions", content=b"{", headers=ALICE | {"Content-Type": "application/json"}).text
    paths = re.compile(r"Traceback|File \\?\"|site-packages|/(?:work|root|home|usr|tmp|opt|var)/|\.py\b|line \d+, in ")
    assert {number: text for number, text in shown.items() if paths.search(text)} == {}


def test_a_key_that_is_taken_out_of_the_file_is_refused_and_a_new_one_let_in(opened: Open, http: httpx.Client) -> None:
    """The last test of this module: it changes the keys."""
    assert http.get("/v1/models", headers=ALICE).status_code == 200
    opened.keys_file.write_text("alice: another-key-of-alice\n")
    time.sleep(1.1)
    assert http.get("/v1/models", headers=ALICE).status_code == 401
    assert http.get("/v1/models", headers=bearer("another-key-of-alice")).status_code == 200
    opened.keys_file.write_text("")
    time.sleep(1.1)
    assert http.get("/v1/models").status_code == 401
    assert http.get("/v1/models", headers=bearer("another-key-of-alice")).status_code == 200
    assert json.loads(http.get("/v1/models", headers=WRONG).text)["error"]["code"] == 401
