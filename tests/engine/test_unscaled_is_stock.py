"""An unscaled request is bit-identical to stock vLLM, which knows nothing of us."""

from __future__ import annotations

import pathlib

import pytest

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.vllm_adapter.arguments.engine_args import engine_arguments
from tests.checkpoints import TRAINED
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import run_engine


@pytest.mark.parametrize(
    ("rope_type", "on_crossing", "dtype"),
    [
        pytest.param("yarn", "rerotate", "float32", marks=pytest.mark.promise("unscaled")),
        ("yarn", "pin", "bfloat16"),
        ("default", "rerotate", "float32"),
    ],
)
def test_tokens_and_logprobs_of_unscaled_requests_are_those_of_stock_vllm_to_the_bit(
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
        scales=(1, 8) if rope_type == "yarn" else (1,),
        original_max_position_embeddings=TRAINED,
        max_model_len=8 * TRAINED if rope_type == "yarn" else TRAINED,
        headroom_tokens=32,
        on_crossing=on_crossing,
    )
    ours = engine_arguments(deployment, engine)
    # The same limits and the same scheduler: batches are cut alike, and kernels choose alike how they take sums.
    stock = engine | {
        "max_model_len": deployment.max_model_len,
        "hf_overrides": {"max_position_embeddings": deployment.max_model_len},
        "async_scheduling": ours.get("async_scheduling"),
    }
    batch = [(prompts(length), 24) for length in (1, 7, 63, 64, 65, 150, 232)]
    (theirs,) = run_engine(tiny, stock, [batch], plugins="", folder=tmp_path)
    (answers,) = run_engine(tiny, ours, [batch], folder=tmp_path)
    assert [answer.posenc and answer.posenc["scale"] for answer in answers] == [1.0] * len(batch)
    assert [answer.posenc for answer in theirs] == [None] * len(batch)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in theirs]
    assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in theirs]
