"""The site of docs in Chromium, opened from its folder."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.page.chromium import browser, needs_chromium
from tests.pages import ROOT

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("a site") / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, timeout=120, env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"})
    return folder


@pytest.fixture
def page(site: pathlib.Path) -> Iterator[Page]:
    """The start page; afterwards, nothing may have been asked of another host."""
    asked: list[str] = []
    with browser() as chromium:
        found = chromium.new_page()
        found.on("request", lambda request: asked.append(request.url))
        found.goto(f"file://{site}/index.html")
        yield found
        found.wait_for_timeout(500)
    assert asked and [url for url in asked if not url.startswith("file://")] == []


def test_a_word_is_found_from_a_folder_and_no_other_host_is_asked(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("kv_cache_memory_bytes")
    expect(page.locator(".md-search-result__item").first).to_contain_text("Configuration")


def test_a_page_below_a_folder_finds_the_search_too(page: Page, site: pathlib.Path) -> None:
    page.goto(f"file://{site}/methods/rerope.html")
    page.keyboard.press("/")
    page.keyboard.type("headroom")
    expect(page.locator(".md-search-result__item").first).to_be_visible()
