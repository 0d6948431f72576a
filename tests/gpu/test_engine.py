"""Engines on a GPU as they are deployed, in float32: both of vLLM's model runners, from CUDA graphs, compiled.

What float32 can show to the fourth digit is shown here, over vLLM's Triton attention; over FlashAttention, which takes
16 bits only, in ``test_engine_bfloat16``.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from transformers import BloomConfig

from posenc_runtime.decoder import register
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice, Kind
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import TRAINED, WIDE, save, save_tiny
from tests.engine import test_crossing, test_longrope, test_prefix_reuse, test_scales_in_one_batch
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import blocks_in_use, run_engine
from tests.engine.test_crossing import (
    SCALES,
    assert_all_answer_as_recomputed,
    assert_all_answer_as_unrotated,
)
from tests.engine.test_encodings import assert_as_trained, unrotated
from tests.engine.test_prefix_reuse import assert_all_answer_as_reused
from tests.engine.test_scales_in_one_batch import NEW_TOKENS, REQUESTS, assert_answers_as_transformers
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.gpu.modes import ATTENTION, DEFAULTS, MODES, Mode, over, tolerated
from tests.tolerance import LOGPROB_FLOAT32, LOGPROB_OTHER_ACTIVATION

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
each_attention = pytest.mark.parametrize("attention", ATTENTION.values(), ids=ATTENTION)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Llama whose heads are 64 wide."""
    return save_tiny(tmp_path_factory.mktemp("wide"), **WIDE)


@pytest.fixture
def prompts() -> PromptMaker:
    return PromptMaker(seed=0)


@each_attention
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_scheduled_ahead_each_request_answers_as_transformers_at_its_own_scale(
    mode: Mode, attention: AttentionChoice, wide: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch = [(prompts(length), NEW_TOKENS) for length, _ in REQUESTS]
    engine = test_scales_in_one_batch.arguments("yarn", attention, **mode.engine)
    first, again = run_engine(wide, engine, [batch, batch], environment=mode.environment, folder=tmp_path)
    mode.assert_ran(tmp_path, over("TRITON_ATTN", attention))
    for (length, scale), (prompt, _), answer, repeated in zip(REQUESTS, batch, first, again, strict=True):
        for said in (answer, repeated):
            assert said.posenc is not None and said.posenc["scale"] == scale
            assert_answers_as_transformers(wide, "yarn", prompt, scale, said, tolerated(attention))
        assert repeated.num_cached_tokens == (length - 1) // 32 * 32


@each_attention
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_requests_that_cross_answer_as_an_unrotated_cache_would(
    mode: Mode, attention: AttentionChoice, wide: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = test_crossing.batches(prompts)
    engine = test_crossing.arguments("yarn", {"rerotate_budget_tokens": 256}, attention, **mode.engine)
    answers = run_engine(wide, engine, asked, environment=mode.environment, folder=tmp_path)
    mode.assert_ran(tmp_path, over("TRITON_ATTN", attention))
    assert_all_answer_as_unrotated(UnrotatedOracle(wide, "yarn", SCALES), asked, answers)
    assert blocks_in_use(tmp_path) == 0


@each_attention
@pytest.mark.parametrize("mode", DEFAULTS.values(), ids=DEFAULTS)
def test_recomputed_requests_answer_as_transformers_run_freshly_at_each_scale(
    mode: Mode, attention: AttentionChoice, wide: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = test_crossing.batches(prompts)
    engine = test_crossing.arguments("yarn", {"on_crossing": "recompute"}, attention, **mode.engine)
    answers = run_engine(wide, engine, asked, environment=mode.environment, folder=tmp_path)
    mode.assert_ran(tmp_path, over("TRITON_ATTN", attention))
    assert_all_answer_as_recomputed(wide, asked, answers, tolerated(attention))


@each_attention
@pytest.mark.parametrize("mode", DEFAULTS.values(), ids=DEFAULTS)
def test_a_prefix_of_another_scale_is_read_as_an_unrotated_cache_would_be(
    mode: Mode, attention: AttentionChoice, wide: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = test_prefix_reuse.batches(prompts)
    engine = test_crossing.arguments("yarn", {"prefix_reuse": "rerotate"}, attention, **mode.engine)
    answers = run_engine(wide, engine, [batch for batch, _ in asked], environment=mode.environment, folder=tmp_path)
    mode.assert_ran(tmp_path, over("TRITON_ATTN", attention))
    assert_all_answer_as_reused(wide, asked, answers)
    assert blocks_in_use(tmp_path) == 0


@each_attention
@pytest.mark.parametrize("mode", DEFAULTS.values(), ids=DEFAULTS)
def test_short_and_long_requests_of_a_phi_answer_as_each_alone_in_transformers(
    mode: Mode, attention: AttentionChoice, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    phi = test_longrope.save_phi(tmp_path / "phi")
    deployment = test_longrope.deployment(1.0, test_longrope.LONGEST, on_crossing="pin")
    engine = engine_arguments(deployment, test_crossing.ENGINE | mode.engine, attention)
    batch = [(prompts(length), NEW_TOKENS) for length in test_longrope.LENGTHS]
    (answers,) = run_engine(phi, engine, [batch], environment=mode.environment, folder=tmp_path)
    mode.assert_ran(tmp_path, over("TRITON_ATTN", attention))
    test_longrope.assert_answers_as_transformers(phi, batch, answers, tolerated(attention))


def bloom(folder: pathlib.Path) -> pathlib.Path:
    return save(folder, BloomConfig(vocab_size=320, hidden_size=256, n_layer=2, n_head=4), std=0.075)


def cope(folder: pathlib.Path) -> pathlib.Path:
    register()
    return save_tiny(folder, "posenc", position_encoding_type="cope", rope_parameters=None, **WIDE)


# BLOOM's activation is computed by a polynomial in transformers.
WITHOUT_ROTATION: dict[str, tuple[Any, Kind, float]] = {
    "bloom": (bloom, "bias", LOGPROB_OTHER_ACTIVATION),
    "cope": (cope, "cope", LOGPROB_FLOAT32),
}


@pytest.mark.parametrize("kind", WITHOUT_ROTATION)
@pytest.mark.parametrize("mode", DEFAULTS.values(), ids=DEFAULTS)
def test_our_attention_answers_as_transformers_from_graphs_whose_memory_was_measured(
    mode: Mode, kind: str, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    make, needs, tolerance = WITHOUT_ROTATION[kind]
    model = make(tmp_path / kind)
    small = {"dtype": "float32", "block_size": 32, "max_num_batched_tokens": 128, "max_num_seqs": 8}
    engine = engine_arguments(
        unrotated(4 * TRAINED), small | {"gpu_memory_utilization": 0.1} | mode.engine, AttentionChoice(needs=needs)
    )
    batch = [(prompts(length), NEW_TOKENS) for length in (3, 40, 700, 129, 333)]
    together, (alone,) = run_engine(model, engine, [batch, batch[2:3]], environment=mode.environment, folder=tmp_path)
    mode.assert_ran(tmp_path, needs)
    answered = zip([*batch, batch[2]], [*together, alone], strict=True)
    said = ((prompt, (answer.token_ids, answer.logprobs)) for (prompt, _), answer in answered)
    assert_as_trained(model, said, tolerance)
