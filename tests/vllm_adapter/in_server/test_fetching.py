"""What vLLM fetches for a client: nothing from a domain that the operator has not named."""

from __future__ import annotations

import asyncio
import base64
import http.server
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.multimodal.media.connector import MediaConnector

from posenc_runtime.vllm_adapter.in_server import fetching

# A PNG of one pixel.
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(autouse=True)
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_MEDIA_URL_ALLOW_REDIRECTS", raising=False)
    for _, _, name in fetching.WRAPPED:
        monkeypatch.setattr(MediaConnector, name, getattr(MediaConnector, name))
    fetching.refuse_fetching()


class Site:
    """A server that answers with a picture, and at /away with a redirect to it; it keeps the paths asked for."""

    def __init__(self) -> None:
        asked: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(302 if self.path == "/away" else 200)
                if self.path == "/away":
                    self.send_header("Location", "/picture.png")
                self.end_headers()
                self.wfile.write(b"" if self.path == "/away" else PICTURE)

            def log_message(self, *_: Any) -> None:
                pass

        self.asked = asked
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever)
    thread.start()
    yield site
    site.server.shutdown()
    thread.join()
    site.server.server_close()


def loaded(connector: MediaConnector, url: str, *, waits: bool) -> Any:
    if waits:
        return connector.fetch_image(url)

    async def fetched() -> Any:
        try:
            return await connector.fetch_image_async(url)
        finally:
            client = connector.connection._async_client
            if client is not None:
                await client.close()
                connector.connection._async_client = None

    return asyncio.run(fetched())


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("allowed", [None, ["example.org"]])
def test_a_url_of_a_domain_that_is_not_named_is_refused_and_not_asked(
    site: Site, allowed: list[str] | None, waits: bool
) -> None:
    connector = MediaConnector(allowed_media_domains=allowed)
    with pytest.raises(ValueError, match=r"setting allowed_media_domains names, got '127\.0\.0\.1': send") as error:
        loaded(connector, f"{site.address}/picture.png", waits=waits)
    assert site.asked == []
    assert create_error_response(error.value).error.code == 400


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("allowed", [["127.0.0.1"], ["*"]])
def test_a_url_of_a_named_domain_is_fetched(site: Site, allowed: list[str], waits: bool) -> None:
    connector = MediaConnector(allowed_media_domains=allowed)
    assert loaded(connector, f"{site.address}/picture.png", waits=waits).size == (1, 1)


@pytest.mark.parametrize("waits", [True, False])
def test_a_redirect_is_not_followed(site: Site, waits: bool) -> None:
    connector = MediaConnector(allowed_media_domains=["127.0.0.1"])
    with pytest.raises(ValueError):
        loaded(connector, f"{site.address}/away", waits=waits)
    assert site.asked == ["/away"]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1\\@example.org:1/", "http://example.org@127.0.0.1:1/", "HTTP://[::1]:1/"]
)
def test_no_spelling_of_a_url_hides_its_host(url: str) -> None:
    with pytest.raises(ValueError, match="allowed_media_domains names"):
        MediaConnector(allowed_media_domains=["example.org"]).fetch_image(url)


def test_a_file_is_refused_by_the_name_of_the_setting_that_allows_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "picture.png").write_bytes(PICTURE)
    url = f"file://{tmp_path}/picture.png"
    with pytest.raises(ValueError, match="setting allowed_local_media_path, which names no folder") as error:
        MediaConnector().fetch_image(url)
    assert create_error_response(error.value).error.code == 400
    assert MediaConnector(allowed_local_media_path=str(tmp_path)).fetch_image(url).size == (1, 1)


def test_a_data_url_needs_no_setting() -> None:
    url = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
    assert MediaConnector().fetch_image(url).size == (1, 1)
