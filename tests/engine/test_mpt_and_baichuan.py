"""Models that vLLM dropped, through ours: MPT and Baichuan from checkpoints under the names of the published ones."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc_runtime.kv.deployment import UNROTATED, Deployment
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import TRAINED, save_weights
from tests.engine.conftest import PromptMaker
from tests.engine.device import most_workers
from tests.engine.greedy import greedy
from tests.engine.run_engine import Answer, counted, run_engine
from tests.engine.transformers_oracle import Oracle
from tests.mpt_and_baichuan import HEADS, TINY_BAICHUAN, TINY_MPT, as_llama, baichuan_weights, mpt_weights
from tests.references.baichuan import baichuan_logits
from tests.references.mpt import mpt_logits
from tests.tolerance import LOGPROB_FLOAT32

LENGTHS = (3, 40, 300, 129)
NEW_TOKENS = 24
LONGEST = 512
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "max_num_batched_tokens": 128,  # forces the prompts into chunks, mixed with decodes
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 2**27,
    "disable_log_stats": False,
}
UNSCALED = Deployment(
    rope_type=UNROTATED,
    original_max_position_embeddings=LONGEST,
    max_model_len=LONGEST,
    on_crossing="pin",
    allow_beyond_trained=True,
)


def test_mpt_over_as_many_workers_as_there_are_answers_as_published(
    prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    attention = {"alibi_bias_max": 12, "clip_qkv": 2.0, "softmax_scale": 0.25}
    config = TINY_MPT | {
        "attn_config": TINY_MPT["attn_config"] | attention,
        "expansion_ratio": 3,
        "logit_scale": "inv_sqrt_d_model",
        "no_bias": False,
        "max_seq_len": LONGEST,
    }
    weights = mpt_weights(config)
    model = save_weights(tmp_path / "mpt", config, weights)
    assert_answers(
        model, lambda tokens: mpt_logits(weights, tokens, config), prompts, tmp_path, workers=most_workers(2)
    )


def test_baichuan_2_with_alibi_answers_as_published(prompts: PromptMaker, tmp_path: pathlib.Path) -> None:
    config = TINY_BAICHUAN | {"alibi": True, "norm_head": True}
    weights = baichuan_weights(config)
    model = save_weights(tmp_path / "baichuan", config, weights)
    assert_answers(
        model,
        lambda tokens: baichuan_logits(weights, tokens, num_heads=HEADS, alibi=True, norm_head=True),
        prompts,
        tmp_path,
        workers=1,
    )


def test_baichuan_with_rotary_embeddings_is_scaled_by_request(prompts: PromptMaker, tmp_path: pathlib.Path) -> None:
    config = TINY_BAICHUAN | {
        "architectures": ["BaiChuanForCausalLM"],
        "alibi": False,
        "norm_head": False,
        "max_position_embeddings": TRAINED,
    }
    weights = baichuan_weights(config)
    model = save_weights(tmp_path / "baichuan", config, weights)
    llama, renamed = as_llama(config, weights)
    same = save_weights(tmp_path / "llama", llama | {"max_position_embeddings": TRAINED}, renamed)
    yarn = Deployment(
        rope_type="yarn", scales=(1, 2), original_max_position_embeddings=TRAINED, max_model_len=2 * TRAINED
    )
    requests = [(prompts(length), scale) for length, scale in ((40, 1), (400, 2), (129, 1))]
    (answers,) = run_engine(
        model, engine_arguments(yarn, ENGINE), [[(prompt, NEW_TOKENS) for prompt, _ in requests]], folder=tmp_path
    )
    for (prompt, scale), answer in zip(requests, answers, strict=True):
        assert_said(answer, *Oracle(same, "yarn", scale).score(prompt, answer.token_ids))


def assert_answers(
    model: pathlib.Path,
    logits: Callable[[Tensor], Tensor],
    prompts: PromptMaker,
    folder: pathlib.Path,
    *,
    workers: int,
) -> None:
    """One request alone, then others and the same again in one batch."""
    batch = [(prompts(length), NEW_TOKENS) for length in LENGTHS]
    answers = run_engine(
        model,
        engine_arguments(UNSCALED, ENGINE | {"tensor_parallel_size": workers}, AttentionChoice(needs="bias")),
        [batch[-1:], batch],
        folder=folder,
    )
    assert counted(folder, "posenc_window_kv_blocks_read") > 0
    asked = [*batch[-1:], *batch]
    for (prompt, _), answer in zip(asked, [answer for each in answers for answer in each], strict=True):
        logprobs = logits(torch.tensor(prompt + answer.token_ids)).log_softmax(-1)[len(prompt) - 1 : -1]
        assert_said(answer, *greedy(logprobs, answer.token_ids))


def assert_said(answer: Answer, choices: list[int], logprobs: list[float]) -> None:
    assert answer.token_ids == choices
    assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_FLOAT32
