"""The pictures of the page in README and docs: ``python -m tests.page.screenshots``."""

from __future__ import annotations

import itertools
import pathlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import httpx
import typer
from playwright.sync_api import FloatRect, Page, expect

from tests.benchmarks.servers import Command, running
from tests.page.chromium import NARROW, browser, opened

PICTURES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "pictures"
DEMO = Command((sys.executable, "-m", "server", "serve", "demo", "--port", "{port}"))
_TRAFFIC_SECONDS = 45
_TEXT = "The sky is blue. The grass is green. "


def main(
    out: Annotated[pathlib.Path, typer.Option(help="Where the PNGs go.", show_default="docs/pictures")] = PICTURES,
) -> None:
    """Draw the page over the demo model: all of it, at two widths, while requests run; and a crossing."""
    with (
        running(DEMO) as address,
        browser() as chromium,
        _traffic(address),
        opened(chromium, address) as wide,
        opened(chromium, address, width=NARROW, scheme="dark") as narrow,
    ):
        wide.page.wait_for_timeout(1000 * _TRAFFIC_SECONDS)
        for page, name in ((wide.page, "page"), (narrow.page, "page_360")):
            _run_all(page)
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=out / f"{name}.png", full_page=True)
        _crop(wide.page, "#try", out / "page_crossing.png")
        faults = [*wide.faults, *narrow.faults]
    if faults:
        raise SystemExit("\n".join(faults))


def _crop(page: Page, selector: str, file: pathlib.Path) -> None:
    """A picture of one part of the page, with some of the ground around it."""
    box = page.locator(selector).bounding_box()
    assert box is not None
    clip: FloatRect = {
        "x": box["x"] - 24, "y": box["y"] - 24, "width": box["width"] + 48, "height": box["height"] + 48,
    }  # fmt: skip
    page.screenshot(path=file, clip=clip, full_page=True)


def _run_all(page: Page) -> None:
    page.get_by_role("button", name="Run all").click()
    expect(page.locator('[data-kind="growing"] .status')).to_contain_text("it crossed from 1 to 2", timeout=60_000)
    expect(page.locator('[data-kind="long"] .status')).to_contain_text("The server reports", timeout=60_000)


@contextmanager
def _traffic(address: str) -> Iterator[None]:
    """Requests of several lengths, some of which cross, until the pictures are there."""
    is_over = threading.Event()

    def send(first: int) -> None:
        with httpx.Client(base_url=address, timeout=120) as http:
            for turn in itertools.count(first):
                if is_over.is_set():
                    return
                length, answer = ((12, 60), (42, 150), (30, 90), (93, 150), (150, 60))[turn % 5]
                prompt = f"{turn // 6}. " + _TEXT * length  # each comes again, so that prefixes are found
                body = {"model": "demo", "prompt": prompt, "max_tokens": answer, "ignore_eos": True, "temperature": 1}
                http.post("/v1/completions", json=body)

    threads = [threading.Thread(target=send, args=(first,)) for first in (0, 1, 2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    typer.run(main)
