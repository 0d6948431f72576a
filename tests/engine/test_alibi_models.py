"""vLLM's own ALiBi models through our backend: BLOOM against transformers and against stock vLLM, Falcon likewise."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from transformers import BloomConfig, FalconConfig

from posenc_runtime.kv.deployment import UNROTATED, Deployment
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice, Backend
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import save
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import Answer, counted, run_engine
from tests.engine.test_encodings import Oracle
from tests.tolerance import LOGPROB_FLOAT32, LOGPROB_OTHER_ACTIVATION

LENGTHS = (3, 40, 700, 129, 333)
NEW_TOKENS = 24
MAX_MODEL_LEN = 1024
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 2**28,
    "disable_log_stats": False,
}
# 6 heads: their slopes are not those of a power of two
CHECKPOINTS = {
    "bloom": lambda: BloomConfig(vocab_size=320, hidden_size=192, n_layer=2, n_head=6),
    "falcon": lambda: FalconConfig(
        vocab_size=320,
        hidden_size=192,
        num_hidden_layers=2,
        num_attention_heads=6,
        alibi=True,
        multi_query=False,
        parallel_attn=False,
    ),
}


@pytest.fixture(params=[pytest.param("bloom", marks=pytest.mark.promise("distance bias")), "falcon"])
def model(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    return save(tmp_path / request.param, CHECKPOINTS[request.param]())


def arguments(backend: Backend, window_tolerance: float) -> dict[str, Any]:
    deployment = Deployment(
        rope_type=UNROTATED,
        original_max_position_embeddings=MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        on_crossing="pin",
        allow_beyond_trained=True,
    )
    return engine_arguments(
        deployment, ENGINE, AttentionChoice(backend=backend, window_tolerance=window_tolerance, needs="bias")
    )


def test_alibi_through_our_backend_answers_as_transformers_and_as_stock_vllm(
    model: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch = [(prompts(length), NEW_TOKENS) for length in LENGTHS]
    (ours, again) = run_engine(model, arguments("auto", 1e-3), [batch, batch], folder=tmp_path)
    assert counted(tmp_path, "posenc_window_kv_blocks_skipped") > 0
    (stock,) = run_engine(model, ENGINE | {"max_model_len": MAX_MODEL_LEN}, [batch], plugins="", folder=tmp_path)
    oracle = Oracle(model)
    for (prompt, _), answer, repeated, theirs in zip(batch, ours, again, stock, strict=True):
        for said in (answer, repeated):
            assert said.token_ids == theirs.token_ids
            assert largest_difference(said.logprobs, theirs.logprobs) < LOGPROB_FLOAT32
        if model.name == "bloom" or len(prompt) + NEW_TOKENS <= 256:
            assert_as_transformers(oracle, prompt, answer)
    assert [answer.num_cached_tokens for answer in again] == [(length - 1) // 32 * 32 for length in LENGTHS]


def test_with_no_tolerance_every_block_is_read(
    model: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    prompt = prompts(200)
    ((answer,),) = run_engine(model, arguments("bias", 0.0), [[(prompt, NEW_TOKENS)]], folder=tmp_path)
    assert counted(tmp_path, "posenc_window_kv_blocks_skipped") == 0
    assert_as_transformers(Oracle(model), prompt, answer)


def assert_as_transformers(oracle: Oracle, prompt: list[int], answer: Answer) -> None:
    # transformers computes BLOOM's activation by a polynomial, and Falcon's distances in bfloat16, exact up to 256.
    choices, expected = oracle.score(prompt, answer.token_ids)
    assert answer.token_ids == choices
    assert largest_difference(answer.logprobs, expected) < LOGPROB_OTHER_ACTIVATION


def largest_difference(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
