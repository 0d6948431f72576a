"""A server as operators run it: in a locked root, with logs as JSON, traced, and scraped by a Prometheus."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import yaml

from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_checkpoint
from posenc_runtime.vllm_adapter.checkpoint.sizing.cache import layer_caches
from tests.benchmarks.servers import Command, running
from tests.deploy.dashboard_queries import load_dashboard, queries
from tests.deploy.prometheus_server import scraping
from tests.engine import device
from tests.engine.locked_root import FOLDER, can_lock, locked
from tests.engine.metrics import metrics
from tests.engine.trace_collector import TraceCollector, attributes, collecting

# What is written, logged, traced and scraped, with a start of its own: before a release, and when deploy/ changes.
pytestmark = pytest.mark.release

CACHE_BYTES = 2**26
SCALING = {"rope_type": "yarn", "scales": [1, 2, 4], "headroom_tokens": 8, "prefix_reuse": "rerotate"}
ENGINE = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": CACHE_BYTES}


@pytest.fixture(scope="module")
def collector() -> Iterator[TraceCollector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("operated")


@pytest.fixture(scope="module")
def log(folder: pathlib.Path) -> pathlib.Path:
    return folder / "log"


@pytest.fixture(scope="module")
def address(tiny: pathlib.Path, folder: pathlib.Path, log: pathlib.Path, collector: TraceCollector) -> Iterator[str]:
    shared = folder / "shared"
    (shared / "home").mkdir(parents=True)
    shutil.copytree(tiny, shared / "model")
    seen = FOLDER if can_lock() else str(shared)
    settings = {
        "model": f"{seen}/model",
        "served_model_name": "tiny",
        "log_format": "json",
        "scaling": SCALING,
        "engine": device.ENGINE | ENGINE | {"otlp_traces_endpoint": collector.address},
    }
    (shared / "deployment.yaml").write_text(yaml.safe_dump(settings))
    posenc = str(pathlib.Path(sys.executable).with_name("posenc"))
    command = (posenc, "serve", "--config", f"{seen}/deployment.yaml", "--port", "{port}")
    environment = {
        "HOME": f"{seen}/home",
        "TORCHINDUCTOR_CACHE_DIR": f"{seen}/home/torchinductor",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "TMPDIR": "/tmp" if can_lock() else str(folder),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    if can_lock():
        command = locked(shared, *command)
    with running(Command(command, environment), log=log) as address:
        yield address


def complete(client: openai.OpenAI, name: str, prompt: str, max_tokens: int, **more: Any) -> Any:
    return client.completions.with_raw_response.create(
        model="tiny",
        prompt=prompt,
        max_tokens=max_tokens,
        extra_body={"ignore_eos": True},
        extra_headers={"X-Request-Id": name, **more.pop("headers", {})},
        **more,
    )


def with_values(expression: str) -> str:
    """An expression of the dashboard with values in the place of Grafana's variables."""
    for variable, value in (("$model_name", ".*"), ("$engine", ".*"), ("$__rate_interval", "20s")):
        expression = expression.replace(variable, value)
    return expression


def entry_of(log: pathlib.Path, name: str, seconds: float = 30.0) -> dict[str, Any]:
    """The line of an ended request; it is written just after the answer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for line in log.read_text(encoding="utf-8").splitlines():
            if f'"x_request_id": "{name}"' in line:
                found: dict[str, Any] = json.loads(line)
                return found
        time.sleep(0.1)
    raise AssertionError(f"no line of {name} in {log.read_text(encoding='utf-8')[-2000:]}")


def test_nothing_but_the_folder_and_tmp_is_written_to(address: str) -> None:
    """The server itself was started there: the lock fails where the root can be written to."""
    if not can_lock():
        pytest.skip("this process may make no namespaces, so the server is not locked")
    assert httpx.get(f"{address}/health", timeout=60).status_code == 200


def test_an_answer_a_log_line_and_a_span_carry_the_name_that_the_client_gave(
    client: openai.OpenAI, log: pathlib.Path, collector: TraceCollector
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    raw = complete(client, "grows-1", "a" * 240, 300, headers={"traceparent": parent})
    said = raw.parse().model_dump()["kv_transfer_params"]["posenc"]
    assert [crossing["at"] for crossing in said["crossings"]] == [256, 512]
    assert raw.headers["x-request-id"] == "grows-1"

    entry = entry_of(log, "grows-1")
    assert "grows-1" in entry["request_id"]
    assert (entry["scale"], entry["crossings"], entry["level"]) == (4.0, said["crossings"], "INFO")

    span = collector.span("grows-1")
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("llm_request", *parent.split("-")[1:3])
    told = attributes(span)
    assert {key: told[key] for key in told if key.startswith("posenc.")} == {
        "posenc.scale": 4.0,
        "posenc.rope_type": "yarn",
        "posenc.admission_tokens": 248,
        "posenc.crossings": 2,
        "posenc.crossings.at": [256, 512],
        "posenc.crossings.from": [1.0, 2.0],
        "posenc.crossings.to": [2.0, 4.0],
        "posenc.crossings.how": ["rerotate", "rerotate"],
    }
    assert told["gen_ai.usage.completion_tokens"] == 300


def test_a_streamed_request_that_ends_at_a_stop_string_has_its_scale_in_its_span(
    client: openai.OpenAI, collector: TraceCollector
) -> None:
    text = complete(client, "full", "s" * 200, 30, seed=1).parse().choices[0].text
    raw = complete(client, "stops-1", "s" * 200, 30, seed=1, stop=text[10:13], stream=True)
    list(raw.parse())
    told = attributes(collector.span("stops-1"))
    assert (told["posenc.scale"], told["posenc.crossings"]) == (1.0, 0)


def test_a_request_without_a_name_gets_one_for_the_header_and_the_log(address: str, log: pathlib.Path) -> None:
    body = {"model": "tiny", "prompt": "b", "max_tokens": 2}
    answer = httpx.post(f"{address}/v1/completions", json=body, timeout=120)
    name = answer.headers["x-request-id"]
    assert name in answer.json()["id"]
    assert entry_of(log, name)["prompt_tokens"] >= 1
    refused = httpx.post(f"{address}/v1/completions", json=body | {"max_tokens": -1}, timeout=120)
    assert refused.status_code == 400 and refused.headers["x-request-id"]


def test_every_line_of_the_log_is_an_object(address: str, log: pathlib.Path) -> None:
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert any(str(line.get("message")).startswith("ready: ") for line in lines)


def test_each_query_of_the_dashboard_and_each_rule_gives_series(
    address: str, client: openai.OpenAI, tmp_path: pathlib.Path
) -> None:
    with scraping(address.removeprefix("http://"), tmp_path) as prometheus:
        # Crossings have a series for each way that a request went.
        wish = {"vllm_xargs": {"posenc_on_crossing": "recompute"}}
        client.completions.create(model="tiny", prompt="r" * 240, max_tokens=60, extra_body={"ignore_eos": True} | wish)
        for number in range(3):
            complete(client, f"traffic-{number}", f"{number}" * 240, 60)
            time.sleep(2)
        asked = queries(load_dashboard())
        assert len(asked) > 40
        empty = [query.where for query in asked if not prometheus.query(with_values(query.expression))]
        assert empty == ["Keys past CoPE's last position"]  # of models with that encoding
        rules = prometheus.rules()
        assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
        recorded = [rule["name"] for rule in rules if rule["type"] == "recording"]
        # Windows of five minutes have two samples by now, which is enough for a rate.
        assert [name for name in recorded if not prometheus.query(name)] == []
        assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
        (up,) = prometheus.query("up")
        assert up["value"][1] == "1"


def test_the_cache_has_room_for_the_tokens_that_posenc_size_computes(address: str, tiny: pathlib.Path) -> None:
    checkpoint = read_checkpoint(str(tiny), {})
    caches = layer_caches(
        checkpoint.text_config,
        checkpoint.architecture,
        model_bytes=4,
        kv_cache_dtype="auto",
        tensor_parallel_size=1,
    )
    of_a_token = sum(each.layers * each.token_bytes for each in caches)
    (labels,) = (dict(labels) for name, labels in metrics(address) if name == "vllm:cache_config_info")
    tokens = int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    assert CACHE_BYTES - ENGINE["block_size"] * of_a_token < tokens * of_a_token <= CACHE_BYTES
