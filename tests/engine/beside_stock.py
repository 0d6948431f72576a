"""The same batch by an engine of ours and by stock vLLM, which knows nothing of us."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.engine.run_engine import Answer, run_engine

Batch = Sequence[tuple[list[int], int]]


def answers_of_both(
    model: pathlib.Path,
    deployment: Deployment,
    batch: Batch,
    *,
    dtype: str,
    hf_overrides: dict[str, Any],
    kv_cache_dtype: str = "auto",
    folder: pathlib.Path,
    **of_stock: Any,
) -> tuple[list[Answer], list[Answer]]:
    """Ours, and stock vLLM's.

    Args:
        hf_overrides: of stock vLLM, which has no deployment.
        of_stock: how its engine is run, as for ``run_engine``.
    """
    engine = {
        "dtype": dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "enforce_eager": True,
        "block_size": 32,
        "max_num_batched_tokens": 128,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 2**28,
    }
    ours = engine_arguments(deployment, engine)
    # The same limits and the same scheduler: batches are cut alike, and kernels choose alike how they take sums.
    stock = engine | {
        "max_model_len": deployment.max_model_len,
        "hf_overrides": hf_overrides,
        "async_scheduling": ours.get("async_scheduling"),
    }
    (theirs,) = run_engine(model, stock, [batch], plugins="", folder=folder, **of_stock)
    (answers,) = run_engine(model, ours, [batch], folder=folder)
    return answers, theirs


def assert_same_to_the_bit(answers: Sequence[Answer], theirs: Sequence[Answer]) -> None:
    assert [answer.posenc for answer in theirs] == [None] * len(theirs)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in theirs]
    assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in theirs]
