"""A deployment that does not say how much is re-rotated before a step, served by two workers."""

from __future__ import annotations

import pathlib
import re

import httpx

from tests.engine import device
from tests.engine.metrics import total
from tests.engine.running_server import running_server

BLOCK_SIZE = 32
NUM_WORKERS = 2


@device.needs_workers(NUM_WORKERS)
def test_workers_measure_what_is_turned_before_a_step_and_the_server_says_it(
    tiny: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    settings = {
        "model": str(tiny),
        "served_model_name": "tiny",
        "scaling": {"rope_type": "yarn", "scales": [1, 2], "headroom_tokens": 8},
        "engine": {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": BLOCK_SIZE,
            "kv_cache_memory_bytes": 2**26,
            "tensor_parallel_size": NUM_WORKERS,
        },
    }
    log = tmp_path / "server.log"
    environment = device.environment(NUM_WORKERS) | {"VLLM_LOGGING_LEVEL": "INFO"}
    with running_server(tmp_path, settings, environment, imported=True, log=log) as address:
        scales = httpx.get(f"{address}/posenc/scales", timeout=60).json()
        asked = {"model": "tiny", "prompt": "a" * 240, "max_tokens": 40, "ignore_eos": True}
        answer = httpx.post(f"{address}/v1/completions", json=asked, timeout=120).json()
        reported = total(address, "posenc_rerotate_budget_tokens"), total(address, "posenc_apply_seconds_count")
    budget, reason = scales["rerotate_budget_tokens"], scales["rerotate_budget_reason"]
    assert budget >= BLOCK_SIZE and budget % BLOCK_SIZE == 0
    assert re.fullmatch(
        r"a step reads .* of weights in .*; turning one token's keys takes .*, so .*\(the slowest of 2 workers\)",
        reason,
    )
    said = log.read_text()
    assert f"crossings: at most {budget:,} cached tokens are re-rotated before a step: {reason}" in said
    assert f"{budget} cached tokens are re-rotated before a step: {reason}" in said  # by the scheduler
    assert reported[0] == budget
    assert reported[1] > 0  # the worker with the tokens is heard
    assert [crossing["how"] for crossing in answer["kv_transfer_params"]["posenc"]["crossings"]] == ["rerotate"]
