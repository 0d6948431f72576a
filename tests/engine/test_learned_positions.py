"""A model of vLLM's that has a learned vector for each position, and fewer positions served than it has."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from transformers import GPT2Config

from posenc_runtime.kv.deployment import UNROTATED, Deployment
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import save
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import run_engine
from tests.engine.test_encodings import Oracle
from tests.gpu.test_engine_bfloat16 import rms
from tests.tolerance import LOGPROB_FLOAT32, LOGPROB_RMS_BFLOAT16

POSITIONS = 256
SERVED = 128
ENGINE: dict[str, Any] = {
    "enforce_eager": True,
    "block_size": 32,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 2**26,
}


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float32", LOGPROB_FLOAT32), ("bfloat16", LOGPROB_RMS_BFLOAT16)],
    ids=["float32", "bfloat16"],
)
def test_a_gpt_2_of_which_half_is_served_answers_as_transformers(
    dtype: str, tolerance: float, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    config = GPT2Config(vocab_size=320, n_positions=POSITIONS, n_embd=64, n_layer=2, n_head=2)
    model = save(tmp_path / "gpt2", config)
    deployment = Deployment(
        rope_type=UNROTATED, original_max_position_embeddings=POSITIONS, max_model_len=SERVED, on_crossing="pin"
    )
    asked = [(prompts(length), 16) for length in (3, 40, 100)]
    # Products of the short one alone are too small for AMX's tiles. Attention uses tiles all the same.
    batches = [asked[:1], asked]
    answers = run_engine(model, engine_arguments(deployment, ENGINE | {"dtype": dtype}), batches, folder=tmp_path)
    oracle = Oracle(model)
    for batch, answered in zip(batches, answers, strict=True):
        for (prompt, _), answer in zip(batch, answered, strict=True):
            _, expected = oracle.score(prompt, answer.token_ids)
            assert rms(answer.logprobs, expected) < tolerance
