"""What runs on a GPU, run on the CPU: vLLM's second model runner over Triton kernels, vLLM's and ours.

Steps of an interpreter take half a second, so requests are few and answers short.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.settings.arguments import engine_args
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import TRAINED, WIDE, save_tiny
from tests.engine import (
    forked_for_triton,
    test_crossing,
    test_prefix_reuse,
    test_read_time,
    test_scales_in_one_batch,
    turning_layer,
)
from tests.engine.conftest import PromptMaker
from tests.engine.device import on_the_cpu
from tests.engine.read_time_oracle import ReadTimeOracle
from tests.engine.run_engine import Answer, blocks_in_use, how_it_ran, run_engine
from tests.engine.test_crossing import Request
from tests.engine.test_encodings import assert_as_trained, unrotated
from tests.engine.test_prefix_reuse import assert_all_answer_as_reused
from tests.engine.test_scales_in_one_batch import assert_answers_as_transformers
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.gpu.modes import ATTENTION, over
from tests.gpu.test_engine import WITHOUT_ROTATION
from tests.gpu.test_engine_bfloat16 import assert_near
from tests.tolerance import LOGPROB_RMS_FLOAT8, LOGPROB_RMS_FLOAT8_CACHE, LOGPROB_RMS_INT8_CACHE

pytestmark = [
    on_the_cpu("a GPU runs all of this by itself, in tests/gpu/test_engine.py"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, for its interpreter"),
]


@pytest.fixture(autouse=True)
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: True)


def run(
    model: pathlib.Path, arguments: dict[str, Any], batches: list[list[Request]], attention: str, folder: pathlib.Path
) -> list[list[Answer]]:
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TORCH_COMPILE_DISABLE": "1"}
    answers = run_engine(
        model,
        arguments | {"enforce_eager": True},
        batches,
        environment=environment,
        module="tests.engine.as_on_a_gpu",
        triton=True,
        folder=folder,
    )
    ran = how_it_ran(folder)
    assert (ran.model_runner, ran.attention) == (2, [attention])
    assert ran.async_scheduling == arguments.get("async_scheduling", False)
    assert blocks_in_use(folder) == 0
    return answers


@pytest.mark.release  # an H100 has run these engines: tests/gpu
@pytest.mark.parametrize("ahead", [False, True], ids=["in-step", "ahead"])
def test_requests_that_cross_or_reuse_a_prefix_answer_as_an_unrotated_cache_would(
    ahead: bool, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    crossing = (prompts(248), 10)
    first_two = test_prefix_reuse.batches(prompts)[:2]
    reusing = [([(prompt, 5) for prompt, _ in batch[:1]], reused_scale) for batch, reused_scale in first_two]
    # Again, the crossing one finds its prompt, so that it has been copied before it was turned.
    asked = [([crossing, (prompts(40), 6)], None), *reusing, ([crossing], None)]
    arguments = test_crossing.arguments(
        "yarn",
        {"prefix_reuse": "rerotate"},
        AttentionChoice(fused_rotary="on"),
        attention_backend="FLASH_ATTN",
        async_scheduling=ahead,
    )
    answers = run(tiny, arguments, [batch for batch, _ in asked], "flash_attn_rotary", tmp_path)
    assert_all_answer_as_reused(tiny, asked, answers)
    for answer in (answers[0][0], answers[-1][0]):
        assert answer.posenc is not None
        assert answer.posenc["crossings"] == [{"at": TRAINED, "from": 1.0, "to": 2.0, "how": "rerotate"}]
    assert answers[-1][0].num_cached_tokens == 224


@pytest.mark.release  # as above
@pytest.mark.parametrize(("rotates", "backend"), [("table", "FLASH_ATTN"), ("fused", "TRITON_ATTN")])
def test_scheduled_ahead_each_request_answers_as_transformers_at_its_own_scale(
    rotates: str, backend: str, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    model = save_tiny(tmp_path / "short", max_position_embeddings=64)
    scales = {20: 1, 70: 2, 55: 1, 135: 4}
    batch = [(prompts(length), 4) for length in scales]
    arguments = test_scales_in_one_batch.arguments(
        "yarn", ATTENTION[rotates], trained=64, async_scheduling=True, attention_backend=backend
    )
    (answers,) = run(model, arguments, [batch], over(backend, ATTENTION[rotates]), tmp_path)
    for (prompt, _), scale, answer in zip(batch, scales.values(), answers, strict=True):
        assert answer.posenc is not None and answer.posenc["scale"] == scale
        assert_answers_as_transformers(model, "yarn", prompt, scale, answer)


@pytest.mark.parametrize(("rotates", "backend"), [("fused", "FLASH_ATTN"), ("table", "TRITON_ATTN")])
def test_requests_cross_in_a_float8_cache_nearly_as_in_an_unrotated_one(
    rotates: str, backend: str, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    model = save_tiny(tmp_path / "wide", **WIDE)
    batch = [(prompts(40), 6), (prompts(248), 14)]
    arguments = test_crossing.arguments(
        "yarn",
        {},
        ATTENTION[rotates],
        attention_backend=backend,
        kv_cache_dtype="fp8",
        async_scheduling=True,
    )
    (answers,) = run(model, arguments, [batch], over(backend, ATTENTION[rotates]), tmp_path)
    oracle = UnrotatedOracle(model, "yarn", test_crossing.SCALES)
    for (prompt, _), answer, crossings in zip(batch, answers, (0, 1), strict=True):
        assert_near(oracle, prompt, answer, 1, LOGPROB_RMS_FLOAT8)
        assert answer.posenc is not None and len(answer.posenc["crossings"]) == crossings


@pytest.mark.parametrize(
    ("kept", "tolerance"),
    [("int8_per_token_head", LOGPROB_RMS_INT8_CACHE), ("fp8_per_token_head", LOGPROB_RMS_FLOAT8_CACHE)],
)
def test_requests_cross_in_a_cache_whose_keys_have_scales_of_their_own(
    kept: str, tolerance: float, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    model = save_tiny(tmp_path / "wide", **WIDE)
    batch = [(prompts(40), 6), (prompts(248), 14), (prompts(500), 16)]
    arguments = test_crossing.arguments(
        "yarn",
        attention_backend="TRITON_ATTN",
        kv_cache_dtype=kept,
        async_scheduling=True,
        max_num_batched_tokens=512,
    )
    (answers,) = run(model, arguments, [batch], "TRITON_ATTN", tmp_path)
    oracle = UnrotatedOracle(model, "yarn", test_crossing.SCALES)
    for request, answer, crossings in zip(batch, answers, (0, 1, 1), strict=True):
        assert_near(oracle, request[0], answer, test_crossing.first_scale(*request), tolerance)
        assert answer.posenc is not None and len(answer.posenc["crossings"]) == crossings


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "TRITON_ATTN"])
def test_queries_past_the_trained_length_turn_beside_short_requests(
    backend: str, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """One that does not reach it, one that grows past it, and a prefill in chunks across it."""
    model = save_tiny(tmp_path / "shorter", max_position_embeddings=128)
    method = test_read_time.rerope(128, 64, 64)
    batch = [(prompts(length), 3) for length in (20, 126, 200)]
    arguments = test_read_time.posenc(method.section) | {"attention_backend": backend, "async_scheduling": True}
    (answers,) = run(model, arguments, [batch], "read_time", tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    oracle = ReadTimeOracle(theirs, method.method(), test_read_time.plain(32, 1e4, 2))
    test_read_time.assert_as(oracle, batch, answers)


def test_short_requests_get_stock_vllms_bits_beside_long_ones_whose_queries_turn(tmp_path: pathlib.Path) -> None:
    found = tmp_path / "found.json"
    log = tmp_path / "log"
    told = os.environ | {"TRITON_INTERPRET": "1"}
    ended = forked_for_triton.status("tests.engine.turning_layer", [str(found)], environment=told, log=log, timeout=300)
    assert ended == 0, log.read_text()[-6000:]
    assert json.loads(found.read_text()) == {name: [] for name in (*turning_layer.CASES, "replayed")}


@pytest.mark.parametrize("kind", WITHOUT_ROTATION)
def test_our_attention_answers_as_transformers(kind: str, prompts: PromptMaker, tmp_path: pathlib.Path) -> None:
    make, needs, tolerance = WITHOUT_ROTATION[kind]
    model = make(tmp_path / kind)
    arguments = engine_arguments(
        unrotated(4 * TRAINED), test_crossing.ENGINE | {"async_scheduling": True}, AttentionChoice(needs=needs)
    )
    batch = [(prompts(length), 4) for length in (3, 40, 129, 300)]
    together, (alone,) = run(model, arguments, [batch, batch[2:3]], needs, tmp_path)
    answered = zip([*batch, batch[2]], [*together, alone], strict=True)
    said = ((prompt, (answer.token_ids, answer.logprobs)) for (prompt, _), answer in answered)
    assert_as_trained(model, said, tolerance)
    assert alone.num_cached_tokens == 128
