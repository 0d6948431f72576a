"""The browser of the page's tests and of its pictures: a Chromium that is installed, without a window."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

Scheme = Literal["light", "dark"]
WIDE, NARROW = 1440, 360
_NAMES = ("chromium", "chromium-browser", "google-chrome")

PATH = next((found for name in _NAMES if (found := shutil.which(name))), None)
needs_chromium = pytest.mark.skipif(
    PATH is None, reason=f"none of {', '.join(_NAMES)} is installed: apt install chromium"
)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser; it ends on leaving."""
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=PATH)
        try:
            yield found
        finally:
            found.close()


@dataclasses.dataclass
class Watched:
    """A page, and what a reader should never meet there.

    Attributes:
        faults: errors of scripts, lines of the console, requests that failed, and requests to other servers.
    """

    page: Page
    faults: list[str]


@contextlib.contextmanager
def opened(
    browser: Browser, address: str, path: str = "/", *, width: int = WIDE, scheme: Scheme = "light", **options: Any
) -> Iterator[Watched]:
    """Open a page of a server in a new context.

    Args:
        options: of the browser's context.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
    page, faults = context.new_page(), list[str]()
    page.on("console", lambda said: faults.append(f"console: {said.text}"))
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("request", lambda asked: None if _is_own(asked.url, address) else faults.append(f"asked: {asked.url}"))
    try:
        page.goto(f"{address}{path}")
        yield Watched(page, faults)
    finally:
        context.close()


def _is_own(url: str, address: str) -> bool:
    return url.startswith((f"{address}/", "data:", "blob:"))


def violations(page: Page) -> list[str]:
    """What axe-core finds, its best practices included: the rule, and the elements that break it."""
    found = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {[node['target'] for node in rule['nodes']]}" for rule in found]
