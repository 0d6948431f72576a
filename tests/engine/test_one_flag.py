"""Plain vLLM with one flag serves what our own command serves, in ``vllm serve`` and in ``LLM``."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.engine.run_engine import run_engine
from tests.engine.running_server import Server, running_server

SECTION = {"rope_type": "yarn", "scales": [1, 2, 4], "headroom_tokens": 40}
ENGINE = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**28}
ASKED: list[dict[str, Any]] = [
    {"prompt": "a" * 100, "max_tokens": 20},  # unscaled
    {"prompt": "b" * 300, "max_tokens": 20},  # scaled from its beginning
    {"prompt": "c" * 200, "max_tokens": 200},  # crosses
    {"prompt": "d" * 200, "max_tokens": 100, "vllm_xargs": {"posenc_on_crossing": "recompute"}},
    {"prompt": "e" * 500, "max_tokens": 30, "vllm_xargs": {"posenc_on_crossing": "pin"}},
]


def test_both_servers_answer_to_the_bit_alike(tiny: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ours, plain = (answers(server, tiny, tmp_path) for server in ("posenc", "vllm"))
    assert ours == plain
    said = [each["kv_transfer_params"]["posenc"] for each in ours]
    assert [each["scale"] for each in said] == [1.0, 2.0, 2.0, 2.0, 4.0]
    assert [crossing["how"] for each in said for crossing in each["crossings"]] == ["rerotate", "recompute"]


def answers(server: Server, model: pathlib.Path, folder: pathlib.Path) -> list[dict[str, Any]]:
    settings = {"model": str(model), "served_model_name": "tiny", "scaling": SECTION, "engine": ENGINE}
    told = []
    with (
        running_server(folder, settings, server=server, imported=True) as address,
        httpx.Client(base_url=address, timeout=120) as http,
    ):
        for body in ASKED:
            fixed = {"model": "tiny", "temperature": 0, "ignore_eos": True, "logprobs": 1}
            answer = http.post("/v1/completions", json=fixed | body).raise_for_status().json()
            told.append({key: value for key, value in answer.items() if key not in ("id", "created")})
    return told


@pytest.mark.promise("Python")
def test_llm_with_a_section_alone_answers_as_with_all_that_follows_from_it(
    tiny: pathlib.Path, tmp_path: pathlib.Path, prompts: Callable[[int], list[int]]
) -> None:
    batch = [(prompts(100), 20), (prompts(300), 20), (prompts(200), 200)]
    deployment = Deployment(
        rope_type="yarn",
        scales=(1.0, 2.0, 4.0),
        headroom_tokens=40,
        original_max_position_embeddings=256,
        max_model_len=1024,
    )
    short, long = (
        run_engine(tiny, arguments, [batch], folder=tmp_path)
        for arguments in (ENGINE | {"additional_config": {"posenc": SECTION}}, engine_arguments(deployment, ENGINE))
    )
    assert [dataclasses.astuple(answer) for answer in short[0]] == [dataclasses.astuple(answer) for answer in long[0]]
    assert short[0][2].posenc is not None and short[0][2].posenc["crossings"]
