"""The page's files, its data and the documentation of the routes, without a browser."""

from __future__ import annotations

import pathlib
import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from server.app import page_routes
from server.app.page_routes import add_page
from server.app.routes import data_router
from tests.page.fake_server import YARN, Fake

PAGE = pathlib.Path(page_routes.__file__).parent / "page"
FILES = sorted(path.name for path in PAGE.iterdir())


@pytest.fixture
def client() -> TestClient:
    return TestClient(Fake().app())


@pytest.mark.parametrize("path", ["/", "/docs", *(f"/posenc/page/{name}" for name in FILES)])
def test_every_file_is_served_with_headers_that_let_nothing_else_in(path: str, client: TestClient) -> None:
    answer = client.get(path)
    assert answer.status_code == 200 and answer.content
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_host_and_none_has_scripts_or_styles_of_its_own(name: str) -> None:
    text = (PAGE / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|@import|url\(|//[a-z]+\.", text)
    if name.endswith(".html"):
        assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)", text)
    assert "innerHTML" not in text and "eval(" not in text


@pytest.mark.parametrize("name", ["index.html", "docs.html"])
def test_what_a_page_loads_is_served(name: str, client: TestClient) -> None:
    text = (PAGE / name).read_text(encoding="utf-8")
    loaded = re.findall(r'(?:src|href)="(posenc/page/[^"]+)"', text)
    assert loaded
    assert {path: client.get(f"/{path}").status_code for path in loaded} == dict.fromkeys(loaded, 200)


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fplugin.py", "swagger/nothing.js", "__init__.py"])
def test_other_files_are_not_served(name: str, client: TestClient) -> None:
    assert client.get(f"/posenc/page/{name}").status_code == 404


def test_the_documentation_of_fastapi_which_loads_from_other_hosts_is_gone(client: TestClient) -> None:
    assert "cdn" not in client.get("/docs").text
    assert client.get("/redoc").status_code == 404
    assert client.get("/docs/oauth2-redirect").status_code == 404


def test_without_swaggers_files_there_is_no_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_routes, "swagger_files", lambda: [])
    assert TestClient(Fake().app()).get("/docs").status_code == 404


def test_documentation_that_is_turned_off_stays_off() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    add_page(app)
    client = TestClient(app)
    assert (client.get("/docs").status_code, client.get("/").status_code) == (404, 200)


def test_the_description_of_the_routes_has_our_title_and_only_our_routes_with_data() -> None:
    app = FastAPI()
    app.include_router(data_router())
    add_page(app)
    described = app.openapi()
    assert described["info"]["title"] == "Posenc"
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", described["info"]["version"])
    assert sorted(described["paths"]) == ["/posenc/live", "/posenc/scales"]


def test_live_joins_scales_rotations_and_counters() -> None:
    fake = Fake()
    client = TestClient(fake.app())
    fake.counters.requests.labels("2").inc(3)
    fake.counters.crossings.labels("1", "2", "rerotate").inc()
    fake.counters.running.set(5)
    fake.counters.first_token.observe(0.05)
    body = client.get("/posenc/live").json()
    assert (body["model"], body["labels"]) == ("demo", ["1", "2", "4", "8"])
    assert body["deployment"] == client.get("/posenc/scales").json()
    assert body["deployment"]["scales"][1]["live"]["requests"] == body["figures"]["by_scale"]["2"]["requests"] == 3
    assert {"from": "1", "to": "2", "how": "rerotate", "count": 1} in body["figures"]["crossings"]
    assert body["figures"]["requests_running"] == 5
    assert body["figures"]["first_token_seconds"] == {
        "bounds": [0.001, 0.01, 0.1, 1.0, 10.0], "counts": [0, 0, 1, 0, 0, 0],
    }  # fmt: skip
    assert [len(turns["wavelengths"]) for turns in body["rotations"]] == [32] * len(YARN.scales)
    assert body["rotations"][0]["wavelengths"][0] == pytest.approx(6.28319)


def test_live_has_no_figures_where_nothing_is_counted() -> None:
    body = TestClient(Fake(counts=False).app()).get("/posenc/live").json()
    assert body["figures"] is None and [scale["live"] for scale in body["deployment"]["scales"]] == [None] * 4


def test_live_is_not_found_where_an_engine_has_no_deployment() -> None:
    answer = TestClient(Fake(deployment=None).app()).get("/posenc/live")
    assert (answer.status_code, "additional_config.posenc" in answer.text) == (404, True)
