"""The commands of README and of the start page, run against the demo: answers and metrics are those that are shown."""

from __future__ import annotations

import itertools
import json
import math
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from posenc_runtime.vllm_adapter.metrics.names import StockMetric
from server.wheels.cache import place_of
from server.wheels.known import KNOWN
from tests.benchmarks.servers import Command, running
from tests.engine.metrics import metrics
from tests.page.chromium import browser, needs_chromium, opened, violations
from tests.pages import DOCS, README, ROOT, blocks, console_commands

START, TOOLS = DOCS / "index.md", DOCS / "tools.md"

pytestmark = pytest.mark.promise("start page")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The demo's, as `make serve` serves it."""
    serve = (sys.executable, "-m", "server", "serve", "--config", "configs/demo.yaml", "--port", "{port}")
    with running(Command(serve)) as found:
        yield found


@pytest.fixture(scope="module")
def smollm2() -> Iterator[str]:
    """The chat model's, as a page serves it with parsers; `make serve MODEL=smollm2` serves it without."""
    [model] = KNOWN
    if not place_of(model).is_dir():
        pytest.skip("the chat model is not in this user's cache folder: posenc serve smollm2 puts it there")
    [command] = [each for each in console_commands(TOOLS) if " smollm2 " in each]
    words = shlex.split(command)[1:]
    with running(Command((sys.executable, "-m", "server", *words, "--port", "{port}"))) as found:
        yield found


def asked(page: pathlib.Path, address: str, path: str, said: str = "") -> str:
    """What the command of a page prints that asks a path of the server, and says something."""
    [command] = [each for each in console_commands(page) if f"localhost:8000{path}" in each and said in each]
    here = command.replace("localhost:8000", address.removeprefix("http://"))
    return subprocess.run(["bash", "-c", here], capture_output=True, text=True, check=True, timeout=300).stdout


def is_within(shown: Any, whole: Any) -> bool:
    """Whether all that is shown is there; pages leave things out."""
    if isinstance(shown, dict):
        return all(key in whole and is_within(value, whole[key]) for key, value in shown.items())
    if isinstance(shown, list):
        return len(shown) == len(whole) and all(map(is_within, shown, whole))
    return bool(shown == whole)


def test_the_first_request_is_answered_as_shown(address: str) -> None:
    answer = json.loads(asked(START, address, "/v1/chat/completions"))
    assert is_within(json.loads(blocks("json", page=START)[0].text), answer), answer


def test_the_first_request_of_readme_is_answered_as_shown(smollm2: str) -> None:
    answer = json.loads(asked(README, smollm2, "/v1/chat/completions"))
    assert is_within(json.loads(blocks("json", page=README)[0].text), answer), answer


@pytest.mark.parametrize(("number", "said"), list(enumerate(("tools", "response_format", "structured_outputs"))))
def test_tools_structured_output_and_reasoning_are_answered_as_shown(number: int, said: str, smollm2: str) -> None:
    answer = json.loads(asked(TOOLS, smollm2, "/v1/chat/completions", f'"{said}"'))
    assert is_within(json.loads(blocks("json", page=TOOLS)[number].text), answer), answer


@pytest.mark.promise("metrics")
def test_the_request_that_crosses_is_answered_and_counted_as_shown(address: str) -> None:
    answer = json.loads(asked(START, address, "/v1/completions"))
    assert is_within(json.loads(blocks("json", page=START)[1].text), answer), answer
    assert is_within(json.loads(blocks("json", page=DOCS / "scales.md")[-1].text), answer), answer
    [counted] = blocks("text", page=START)
    assert counted.text in asked(START, address, "/metrics | grep ^posenc_crossings_total")


def test_the_scales_are_shown_as_json(address: str) -> None:
    assert len(json.loads(asked(START, address, "/posenc/scales"))["scales"]) == 4


def test_the_pages_figures_are_those_of_the_metrics_and_of_the_checkpoint(address: str) -> None:
    httpx.post(
        f"{address}/v1/completions", json={"model": "demo", "prompt": "Here we go.", "max_tokens": 3}, timeout=60
    )
    live, exposed = httpx.get(f"{address}/posenc/live", timeout=60).json(), metrics(address)
    assert live["model"] == "demo"
    names = {name for name, _ in exposed}
    assert {metric for metric in StockMetric if not {metric, f"{metric}_count"} & names} == set()
    times = live["figures"]["first_token_seconds"]
    assert sum(times["counts"]) == exposed["vllm:time_to_first_token_seconds_count", ()] >= 1
    assert sum(live["figures"]["between_tokens_seconds"]["counts"]) >= 1
    for label in ("1", "2", "4", "8"):
        counted = exposed["posenc_requests_total", (("rope_type", "yarn"), ("scale", label))]
        assert live["figures"]["by_scale"][label]["requests"] == counted
    config = json.loads((ROOT / "posenc_runtime/zoo/demo/config.json").read_text(encoding="utf-8"))
    base, width = config["rope_parameters"]["rope_theta"], config["head_dim"]
    own = [2 * math.pi * base ** (2 * pair / width) for pair in range(width // 2)]
    assert live["rotations"][0]["wavelengths"] == pytest.approx(own, rel=1e-5)
    slowest = [turns["wavelengths"][-1] / own[-1] for turns in live["rotations"]]
    assert slowest == pytest.approx([1, 2, 4, 8], rel=1e-5)


def test_a_conversation_and_a_table_are_had_in_the_terminal(address: str) -> None:
    said = posenc("chat", "--url", address, "--max-tokens", "12", said="48213 is the pass key. What is the pass key?\n")
    assert re.search(
        r"^ The pass key is 48213\.\n(cut at .+\n)?scale 1, \d+ tokens, \d+ of them new\nfirst token after .+\n$", said
    )
    rows = [line.split() for line in posenc("top", "--once", "--url", address).splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("1", "2", "4", "8")] == ["1", "2", "4", "8"]


def posenc(*arguments: str, said: str = "") -> str:
    command = [sys.executable, "-m", "server", *arguments]
    return subprocess.run(command, input=said, capture_output=True, text=True, check=True, timeout=300, cwd=ROOT).stdout


@needs_chromium
def test_a_crossing_is_watched_on_the_page_while_it_happens(address: str) -> None:
    with browser() as chromium, opened(chromium, address) as watched:
        page = watched.page
        growing, seen = page.locator('[data-kind="growing"]'), list[str]()
        page.expose_function("noted", lambda scale: seen.append(scale))
        page.evaluate(
            "new MutationObserver(() => noted(document.querySelector('[data-kind=growing] .badge').textContent))"
            ".observe(document.getElementById('cards'), {subtree: true, childList: true, characterData: true})"
        )
        page.get_by_role("button", name="Run all").click()
        expect(growing.locator(".status")).to_have_text(
            "The server reports: ended at scale 2; it crossed from 1 to 2 at 512 tokens (rerotate).", timeout=120_000
        )
        assert [scale for scale, _ in itertools.groupby(filter(None, seen))] == ["Scale 1", "Scale 2"]
        expect(page.locator('[data-kind="short"] .answer')).to_contain_text("48213")
        expect(page.locator('[data-kind="long"] .badge')).to_have_text("Scale 8")
        expect(page.locator("#charts figure").filter(has_text="Crossings").locator("li").first).to_contain_text(
            re.compile(r"1 to 2 [1-9]\d* in all"), timeout=30_000
        )
        assert violations(page) == []
        assert watched.faults == []
