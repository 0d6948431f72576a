"""Llama 3.1, whose own rotation slows slow pairs at every length: unscaled, scaled, across its trained length."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import TRAINED, save_tiny
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import run_engine
from tests.engine.test_crossing import ENGINE, SCALES, assert_answers_as_unrotated, deployment
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.tolerance import LOGPROB_WRONG_SCALE

BLEND: dict[str, Any] = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
BEFORE = 32  # tokens: the length that the model had before it was tuned to 256
OWN = {"rope_type": "llama3", "rope_theta": 10000.0, "original_max_position_embeddings": BEFORE} | BLEND
DEPLOYMENT = deployment("llama3", parameters=BLEND | {"old_context_len": BEFORE})


class Llama3Oracle(UnrotatedOracle):
    def __init__(self, model: pathlib.Path, *, is_scaled: bool = True) -> None:
        self.model, self.is_scaled = model, is_scaled
        super().__init__(model, "llama3", SCALES)

    def _rotation(self, rope_type: str, scale: int) -> tuple[Tensor, float]:
        config = AutoConfig.from_pretrained(self.model)
        config.rope_parameters = OWN | {"factor": OWN["factor"] * (scale if self.is_scaled else 1)}
        inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[rope_type](config, "cpu")
        return inv_freq, float(attention_factor)


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_tiny(tmp_path_factory.mktemp("llama3"), rope_parameters=OWN)


@pytest.mark.promise("llama3")
def test_short_requests_equal_stock_vllms_and_longer_ones_an_unrotated_caches(
    llama3: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    short = [(prompts(length), 16) for length in (1, 63, 64, 150, 232)]
    long = [(prompts(240), 60), (prompts(300), 30), (prompts(500), 40), (prompts(100), 420)]
    stock = ENGINE | {"max_model_len": TRAINED}
    (theirs,) = run_engine(llama3, stock, [short], plugins="", folder=tmp_path)
    answers, grown = run_engine(llama3, engine_arguments(DEPLOYMENT, ENGINE), [short, long], folder=tmp_path)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in theirs]
    assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in theirs]

    oracle = Llama3Oracle(llama3)
    for request, answer in zip(long, grown, strict=True):
        assert_answers_as_unrotated(oracle, request, answer)
    # What other engines do past the trained length, if they are told to serve it: the checkpoint's own rotation.
    (prompt, _), answer = long[-1], grown[-1]
    _, unscaled = Llama3Oracle(llama3, is_scaled=False).score(prompt, answer.token_ids, 1)
    assert max(abs(a - b) for a, b in zip(answer.logprobs, unscaled, strict=True)) > LOGPROB_WRONG_SCALE
