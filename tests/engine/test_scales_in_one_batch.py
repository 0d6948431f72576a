"""Requests of every scale share a batch, and each answers as a static deployment at its own scale would."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import TRAINED, save_tiny
from tests.engine.conftest import PromptMaker
from tests.engine.device import needs_workers
from tests.engine.run_engine import Answer, run_engine
from tests.engine.transformers_oracle import Oracle
from tests.tolerance import LOGPROB_FLOAT32, LOGPROB_WRONG_SCALE

NEW_TOKENS = 24
# (prompt tokens, scale)
REQUESTS = [(40, 1), (300, 2), (900, 4), (60, 1), (1500, 8)]


def arguments(
    rope_type: str, attention: AttentionChoice | None = None, *, trained: int = TRAINED, **engine: Any
) -> dict[str, Any]:
    deployment = Deployment(
        rope_type=rope_type,
        scales=(1, 2, 4, 8),
        original_max_position_embeddings=trained,
        max_model_len=8 * trained,
        on_crossing="pin",
    )
    small = {
        "dtype": "float32",
        "block_size": 32,
        "max_num_batched_tokens": 128,  # forces the prompts into chunks, mixed with decodes
        "max_num_seqs": 8,
        "enable_prefix_caching": True,
        "kv_cache_memory_bytes": 2**28,
    }
    return engine_arguments(deployment, small | engine, attention)


def assert_answers_as_transformers(
    model: pathlib.Path,
    rope_type: str,
    prompt: list[int],
    scale: int,
    answer: Answer,
    tolerance: float = LOGPROB_FLOAT32,
) -> None:
    greedy, logprobs = Oracle(model, rope_type, scale).score(prompt, answer.token_ids)
    assert answer.token_ids == greedy
    assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < tolerance
    _, wrong = Oracle(model, rope_type, 4 if scale == 1 else 1).score(prompt, answer.token_ids)
    assert max(abs(a - b) for a, b in zip(answer.logprobs, wrong, strict=True)) > LOGPROB_WRONG_SCALE


@pytest.mark.parametrize(
    ("rope_type", "mode"),
    [pytest.param("yarn", "eager", marks=pytest.mark.promise("mixed batch", "pin"))]
    + [(rope_type, "eager") for rope_type in ("dynamic", "linear", "ntk")]
    # Compiled, methods differ in what their tables hold, and in nothing that is compiled: test_crossing.py does, too.
    + [pytest.param("yarn", "compiled", marks=pytest.mark.release)],
)
def test_each_request_of_a_mixed_batch_answers_as_transformers_at_its_own_scale(
    rope_type: str, mode: str, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch = [(prompts(length), NEW_TOKENS) for length, _ in REQUESTS]
    first, again = run_engine(
        tiny, arguments(rope_type, enforce_eager=mode == "eager"), [batch, batch], folder=tmp_path
    )
    for (length, scale), (prompt, _), answer, repeated in zip(REQUESTS, batch, first, again, strict=True):
        assert answer.posenc == {
            "rope_type": rope_type,
            "scale": scale,
            "admission_tokens": length + NEW_TOKENS,
            "crossings": [],
        }
        assert_answers_as_transformers(tiny, rope_type, prompt, scale, answer)
        assert_answers_as_transformers(tiny, rope_type, prompt, scale, repeated)
        assert repeated.num_cached_tokens == (length - 1) // 32 * 32


@pytest.mark.promise("tensor parallelism")
@needs_workers(2)
def test_two_tensor_parallel_workers_answer_as_transformers(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch = [(prompts(length), NEW_TOKENS) for length, _ in REQUESTS]
    engine = arguments("yarn", enforce_eager=True, tensor_parallel_size=2)
    (answers,) = run_engine(tiny, engine, [batch], folder=tmp_path)
    for (_, scale), (prompt, _), answer in zip(REQUESTS, batch, answers, strict=True):
        assert_answers_as_transformers(tiny, "yarn", prompt, scale, answer)


def test_interleaved_pairs_and_partial_rotary_answer_as_transformers(
    prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    # GLM-4 rotates the first half of each head, in interleaved (GPT-J) pairs.
    model = save_tiny(
        tmp_path / "glm4",
        "glm4",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    )
    batch = [(prompts(length), NEW_TOKENS) for length, _ in REQUESTS]
    (answers,) = run_engine(model, arguments("yarn", enforce_eager=True), [batch], folder=tmp_path)
    for (_, scale), (prompt, _), answer in zip(REQUESTS, batch, answers, strict=True):
        assert_answers_as_transformers(model, "yarn", prompt, scale, answer)
