"""A scaled request is stock vLLM's at a static scale, to the bit, given a table of exact angles."""

from __future__ import annotations

import pathlib

import pytest

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.vllm_adapter.arguments.engine_args import engine_arguments
from tests.checkpoints import TRAINED
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import run_engine

FACTOR = 4


@pytest.mark.parametrize(
    ("rope_type", "on_crossing", "dtype"),
    [
        ("yarn", "pin", "float32"),
        pytest.param("yarn", "rerotate", "bfloat16", marks=pytest.mark.promise("scaled")),
        ("linear", "rerotate", "float32"),
    ],
)
def test_tokens_and_logprobs_of_scaled_requests_are_those_of_a_static_deployment_to_the_bit(
    rope_type: str,
    on_crossing: OnCrossing,
    dtype: str,
    tiny: pathlib.Path,
    prompts: PromptMaker,
    tmp_path: pathlib.Path,
) -> None:
    engine = {
        "dtype": dtype,
        "enforce_eager": True,
        "block_size": 32,
        "max_num_batched_tokens": 128,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 2**28,
    }
    deployment = Deployment(
        rope_type=rope_type,
        scales=(1, 2, FACTOR),
        original_max_position_embeddings=TRAINED,
        max_model_len=FACTOR * TRAINED,
        headroom_tokens=24,
        on_crossing=on_crossing,
    )
    ours = engine_arguments(deployment, engine)
    rope_parameters = {
        "rope_type": rope_type,
        "rope_theta": 10000.0,
        "factor": float(FACTOR),
        "original_max_position_embeddings": TRAINED,
    }
    # The same limits and the same scheduler: batches are cut alike, and kernels choose alike how they take sums.
    stock = engine | {
        "max_model_len": deployment.max_model_len,
        "hf_overrides": {"rope_parameters": rope_parameters},
        "async_scheduling": ours.get("async_scheduling"),
    }
    batch = [(prompts(length), 24) for length in (489, 513, 600, 767, 1000)]  # all over twice the trained length
    (theirs,) = run_engine(
        tiny,
        stock,
        [batch],
        plugins="",
        environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
        module="tests.engine.static_in_float64",
        folder=tmp_path,
    )
    (answers,) = run_engine(tiny, ours, [batch], folder=tmp_path)
    assert [answer.posenc and (answer.posenc["scale"], answer.posenc["crossings"]) for answer in answers] == [
        (FACTOR, [])
    ] * len(batch)
    assert [answer.posenc for answer in theirs] == [None] * len(batch)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in theirs]
    assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in theirs]
