"""Engines on a GPU as they are deployed, in bfloat16 over FlashAttention.

To the bit where stock vLLM says what must come out; elsewhere as near to float32 as bfloat16 gets, which is far nearer
than any other scale is.
"""

from __future__ import annotations

import pathlib
import statistics
from typing import Any

import pytest

from posenc_runtime.kv.deployment import OnCrossing
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from tests.checkpoints import TRAINED, WIDE, save_tiny
from tests.engine import test_crossing
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import Answer, blocks_in_use, run_engine
from tests.engine.test_crossing import SCALES, expected_crossings, first_scale
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.gpu.modes import ATTENTION, MODES, Mode, over
from tests.tolerance import LOGPROB_RMS_BFLOAT16, LOGPROB_RMS_FLOAT8, LOGPROB_WRONG_SCALE

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
each_attention = pytest.mark.parametrize("attention", ATTENTION.values(), ids=ATTENTION)

OURS = ("additional_config", "attention_backend", "kv_transfer_config", "scheduler_cls", "worker_extension_cls")
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": TRAINED,
    "short_factor": [1 + pair / 32 for pair in range(32)],
    "long_factor": [1 + pair / 8 for pair in range(32)],
}


@pytest.fixture
def prompts() -> PromptMaker:
    return PromptMaker(seed=0)


def engine(mode: Mode, attention: AttentionChoice, **scaling: Any) -> dict[str, Any]:
    return test_crossing.arguments("yarn", scaling, attention, dtype="bfloat16", **mode.engine)


def stock(ours: dict[str, Any]) -> dict[str, Any]:
    """The same engine without posenc: the same limits and the same scheduler, so that batches are cut alike."""
    theirs = {name: value for name, value in ours.items() if name not in OURS}
    return theirs | {"hf_overrides": {"max_position_embeddings": ours["max_model_len"]}}


def assert_same_to_the_bit(answers: list[Answer], theirs: list[Answer]) -> None:
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in theirs]
    assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in theirs]


UNSCALED: dict[str, tuple[str, str, OnCrossing]] = {
    "llama-v2-default": ("llama", "v2-default", "pin"),
    "llama-v2-default-rerotate": ("llama", "v2-default", "rerotate"),
    "llama-v2-piecewise": ("llama", "v2-piecewise", "pin"),
    "llama-v2-full": ("llama", "v2-full", "pin"),
    "llama-v1-default": ("llama", "v1-default", "pin"),
    "llama-v1-eager": ("llama", "v1-eager", "rerotate"),
    "qwen3-v2-default": ("qwen3", "v2-default", "pin"),
    "phi3-v2-default": ("phi3", "v2-default", "pin"),
}


@pytest.mark.parametrize(("model_type", "mode", "on_crossing"), UNSCALED.values(), ids=UNSCALED)
def test_rotated_by_the_table_unscaled_requests_are_those_of_stock_vllm_to_the_bit(
    model_type: str, mode: str, on_crossing: OnCrossing, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    model, runs = save_tiny(tmp_path / model_type, model_type, **WIDE), MODES[mode]
    batch = [(prompts(length), 24) for length in (1, 7, 63, 64, 65, 150, 232)]
    ours = engine(runs, ATTENTION["table"], on_crossing=on_crossing, headroom_tokens=24)
    said = []
    for arguments, plugins in ((ours, "posenc"), (stock(ours), "")):
        said += run_engine(
            model, arguments, [batch, batch], plugins=plugins, environment=runs.environment, folder=tmp_path
        )
        runs.assert_ran(tmp_path, "FLASH_ATTN")
    answers, again, theirs, theirs_again = said
    assert [answer.posenc and answer.posenc["scale"] for answer in answers] == [1.0] * len(batch)
    assert [answer.posenc for answer in theirs] == [None] * len(batch)
    assert_same_to_the_bit(answers, theirs)
    assert_same_to_the_bit(again, theirs_again)


def test_without_scales_a_long_rope_checkpoint_is_served_as_by_stock_vllm(
    prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    # Phi-3's. Posenc puts a class in place of vLLM's for it.
    own = {"max_position_embeddings": 8 * TRAINED, "rope_parameters": LONG_ROPE}
    model, mode = save_tiny(tmp_path / "phi3", "phi3", **WIDE | own), MODES["v2-default"]
    arguments = stock(engine(mode, ATTENTION["table"]))
    batch = [(prompts(length), 24) for length in (7, 150, 900)]
    with_posenc, without = (
        run_engine(model, arguments, [batch], plugins=plugins, environment=mode.environment, folder=tmp_path)[0]
        for plugins in ("posenc", "")
    )
    assert_same_to_the_bit(with_posenc, without)


@each_attention
def test_requests_of_every_scale_answer_nearly_as_float32_does_from_a_float8_cache(
    attention: AttentionChoice, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    model, mode = save_tiny(tmp_path / "llama", **WIDE), MODES["v2-default"]
    # None needs scale 8: at more than 1,024 tokens the tiny checkpoint answers too much alike at all scales.
    batch = [(prompts(length), 24) for length in (40, 300, 900, 60, 500)]
    ours = engine(mode, attention, on_crossing="pin") | {"kv_cache_dtype": "fp8"}
    (answers,) = run_engine(model, ours, [batch], environment=mode.environment, folder=tmp_path)
    mode.assert_ran(tmp_path, over("FLASH_ATTN", attention))
    oracle = UnrotatedOracle(model, "yarn", SCALES)
    for (prompt, _), answer in zip(batch, answers, strict=True):
        assert answer.posenc is not None
        assert_near(oracle, prompt, answer, int(answer.posenc["scale"]), LOGPROB_RMS_FLOAT8)


def rms(one: list[float], other: list[float]) -> float:
    return statistics.fmean((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5


def assert_near(
    oracle: UnrotatedOracle,
    prompt: list[int],
    answer: Answer,
    first_scale: int,
    tolerance: float = LOGPROB_RMS_BFLOAT16,
) -> None:
    right, wrong = (
        oracle.score(prompt, answer.token_ids, scale)[1] for scale in (first_scale, 4 if first_scale == 8 else 8)
    )
    assert rms(answer.logprobs, right) < tolerance
    assert rms(answer.logprobs, wrong) > LOGPROB_WRONG_SCALE


SCALED: dict[str, tuple[str, str]] = {
    "llama-v2-default": ("llama", "v2-default"),
    "llama-v2-full": ("llama", "v2-full"),
    "llama-v1-default": ("llama", "v1-default"),
    "qwen3-v2-default": ("qwen3", "v2-default"),
}


@each_attention
@pytest.mark.parametrize("on_crossing", ["pin", "rerotate"])
@pytest.mark.parametrize(("model_type", "mode"), SCALED.values(), ids=SCALED)
def test_requests_of_every_scale_answer_as_float32_does(
    model_type: str,
    mode: str,
    on_crossing: OnCrossing,
    attention: AttentionChoice,
    prompts: PromptMaker,
    tmp_path: pathlib.Path,
) -> None:
    model, runs = save_tiny(tmp_path / model_type, model_type, **WIDE), MODES[mode]
    asked = test_crossing.batches(prompts)
    ours = engine(runs, attention, on_crossing=on_crossing)
    answers = run_engine(model, ours, asked, environment=runs.environment, folder=tmp_path)
    runs.assert_ran(tmp_path, over("FLASH_ATTN", attention))
    oracle = UnrotatedOracle(model, "yarn", SCALES)
    for batch, said in zip(asked, answers, strict=True):
        for (prompt, max_tokens), answer in zip(batch, said, strict=True):
            assert answer.posenc is not None
            if on_crossing == "pin":
                first = next(scale for scale in SCALES if len(prompt) + max_tokens <= scale * TRAINED)
                assert (answer.posenc["scale"], answer.posenc["crossings"]) == (first, [])
            else:
                first = first_scale(prompt, max_tokens)
                assert answer.posenc["crossings"] == expected_crossings(oracle, prompt, max_tokens)
            assert_near(oracle, prompt, answer, first)
    assert blocks_in_use(tmp_path) == 0
