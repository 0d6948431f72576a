"""Requests that cross on several engines behind one server, and on workers that share out both layers and heads."""

from __future__ import annotations

import pathlib
import re
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.checkpoints import TRAINED
from tests.engine.conftest import PromptMaker
from tests.engine.device import needs_workers
from tests.engine.run_engine import Answer, run_engine
from tests.engine.running_server import running_server
from tests.engine.test_crossing import (
    ENGINE,
    HEADROOM,
    SCALES,
    Request,
    arguments,
    assert_all_answer_as_unrotated,
    expected_crossings,
)
from tests.engine.unrotated_oracle import UnrotatedOracle


def mixed(prompts: PromptMaker) -> list[Request]:
    """None, one and two crossings, and one scale larger from the start."""
    return [(prompts(40), 30), (prompts(240), 40), (prompts(230), 300), (prompts(300), 20)]


@needs_workers(4)
def test_two_stages_of_two_workers_answer_as_an_unrotated_cache_would(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    # In eager mode stock vLLM's CPU runner fails with two stages: it skips the warm-up that they need.
    parallel = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "enforce_eager": False}
    batch = mixed(prompts)
    answers = run_engine(tiny, arguments("yarn", **parallel), [batch], folder=tmp_path)
    assert_all_answer_as_unrotated(UnrotatedOracle(tiny, "yarn", SCALES), [batch], answers)


@needs_workers(2)
def test_requests_cross_on_two_engines_behind_one_server(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """Each turns within its own budget. Metrics tell them apart, and the server's other figures add them up."""
    batch = mixed(prompts) + mixed(prompts)
    oracle = UnrotatedOracle(tiny, "yarn", SCALES)
    settings = {
        **{"model": str(tiny), "served_model_name": "tiny", "max_model_len": SCALES[-1] * TRAINED},
        "scaling": {"rope_type": "yarn", "scales": list(SCALES), "headroom_tokens": HEADROOM},
        "engine": {**ENGINE, "kv_cache_memory_bytes": 2**26, "data_parallel_size": 2},
    }
    with (
        running_server(tmp_path, settings, imported=True) as address,
        httpx.Client(base_url=address, timeout=300) as http,
        ThreadPoolExecutor(len(batch)) as pool,
    ):
        answers = [*pool.map(lambda asked: answer_of(http, *asked), batch)]
        scales = http.get("/posenc/scales").raise_for_status().json()
        metrics = http.get("/metrics").raise_for_status().text
    assert_all_answer_as_unrotated(oracle, [batch], [answers])
    crossings = of_engines(metrics, "posenc_crossings_total")
    assert set(crossings) == {"0", "1"} and all(crossings.values())
    assert sum(crossings.values()) == sum(len(expected_crossings(oracle, *asked)) for asked in batch)
    assert sum(scale["live"]["requests"] for scale in scales["scales"]) == len(batch)
    budgets = of_engines(metrics, "posenc_rerotate_budget_tokens")
    assert set(budgets) == {"0", "1"} and scales["rerotate_budget_tokens"] == min(budgets.values())
    assert scales["rerotate_budget_reason"].endswith(
        f"of 2 engines, this one has the smallest budget, and the largest is {int(max(budgets.values())):,} tokens"
    )


def answer_of(http: httpx.Client, prompt: list[int], max_tokens: int) -> Answer:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    said = http.post("/v1/completions", json=body | {"logprobs": 0, "return_token_ids": True}).raise_for_status().json()
    [choice] = said["choices"]
    logprobs = choice["logprobs"]["token_logprobs"]
    return Answer(choice["token_ids"], logprobs, 0, said["kv_transfer_params"]["posenc"])


def of_engines(metrics: str, name: str) -> dict[str, float]:
    """A sample by the number of its engine, summed over its other labels."""
    found: dict[str, float] = {}
    for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", metrics, re.MULTILINE):
        engine = re.search(r'\bengine="(\d+)"', labels)
        assert engine is not None
        found[engine[1]] = found.get(engine[1], 0) + float(value)
    return found
