"""LongRoPE's two rotations in one batch: short requests keep the short factors, which every other engine takes away."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import TRAINED, save_tiny
from tests.engine.conftest import PromptMaker
from tests.engine.greedy import greedy
from tests.engine.run_engine import Answer, run_engine
from tests.engine.test_crossing import ENGINE, Request
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.tolerance import LOGPROB_AFTER_CROSSING, LOGPROB_FLOAT32, LOGPROB_WRONG_SCALE

LONGEST, HEADROOM = 8, 8
LENGTHS = (40, 300, 200, 900, 1500)
FACTORS: dict[str, Any] = {
    "short_factor": [1.0 + 0.02 * pair for pair in range(16)],
    "long_factor": [1.0 + 2.0 * pair for pair in range(16)],
}
OWN = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": TRAINED} | FACTORS
CONFIG = {"max_position_embeddings": LONGEST * TRAINED, "rope_parameters": OWN}


def deployment(*scales: float, **settings: Any) -> Deployment:
    return Deployment(
        rope_type="longrope",
        parameters=FACTORS | {"attention_factor": math.sqrt(1 + math.log(LONGEST) / math.log(TRAINED))},
        scales=scales,
        original_max_position_embeddings=TRAINED,
        **({"max_model_len": int(scales[-1] * TRAINED), "headroom_tokens": HEADROOM} | settings),
    )


def save_phi(folder: pathlib.Path) -> pathlib.Path:
    heads = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
    trained = {"original_max_position_embeddings": TRAINED, "sliding_window": None}
    return save_tiny(folder, "phi3", **CONFIG, **heads, **trained)


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_phi(tmp_path_factory.mktemp("phi"))


def test_short_and_long_requests_of_a_phi_answer_as_each_alone_in_transformers(
    phi: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch = [(prompts(length), 24) for length in LENGTHS]
    pinned = engine_arguments(deployment(1.0, LONGEST, on_crossing="pin"), ENGINE)
    (answers,) = run_engine(phi, pinned, [batch], folder=tmp_path)
    assert_answers_as_transformers(phi, batch, answers)


def assert_answers_as_transformers(
    phi: pathlib.Path, batch: list[Request], answers: list[Answer], tolerance: float = LOGPROB_FLOAT32
) -> None:
    model = AutoModelForCausalLM.from_pretrained(phi, dtype=torch.float32, attn_implementation="eager").eval()
    for (prompt, _), answer in zip(batch, answers, strict=True):
        is_long = len(prompt) > TRAINED
        assert answer.posenc is not None and answer.posenc["scale"] == (LONGEST if is_long else 1)
        with torch.no_grad():  # transformers takes the long factors where a sequence is longer than the trained length
            logits = model(torch.tensor([prompt + answer.token_ids])).logits[0].float()
        choices, chosen = greedy(logits.log_softmax(-1)[len(prompt) - 1 : -1], answer.token_ids)
        assert answer.token_ids == choices
        assert max(abs(a - b) for a, b in zip(answer.logprobs, chosen, strict=True)) < tolerance


def test_short_requests_beside_long_ones_equal_those_of_a_stock_vllm_for_short_ones(
    phi: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch = [(prompts(length), 24) for length in (1, 63, 64, 150, 232)]
    stock = ENGINE | {"max_model_len": TRAINED}
    (theirs,) = run_engine(phi, stock, [batch], plugins="", folder=tmp_path)
    # Less than the checkpoint could be served at, which is not what its attention factor is made of.
    less = deployment(1.0, LONGEST, max_model_len=LONGEST * TRAINED // 2)
    (answers,) = run_engine(phi, engine_arguments(less, ENGINE), [batch], folder=tmp_path)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in theirs]
    assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in theirs]


class LongRopeOracle(UnrotatedOracle):
    def _rotation(self, rope_type: str, scale: int) -> tuple[Tensor, float]:
        inv_freq, attention_factor = ROPE_INIT_FUNCTIONS["longrope"](
            AutoConfig.from_pretrained(self.model), "cpu", seq_len=scale * TRAINED
        )
        return inv_freq, float(attention_factor)

    def __init__(self, model: pathlib.Path) -> None:
        self.model = model
        super().__init__(model, "longrope", (1, LONGEST))


@pytest.mark.promise("longrope")
def test_a_request_past_the_trained_length_goes_on_as_an_unrotated_cache_would(
    prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    model = save_tiny(tmp_path / "llama", **CONFIG)
    batch = [(prompts(240), 60), (prompts(40), 30), (prompts(300), 30), (prompts(100), 400)]
    crossing = engine_arguments(deployment(1.0, LONGEST), ENGINE)
    (answers,) = run_engine(model, crossing, [batch], folder=tmp_path)
    oracle = LongRopeOracle(model)
    for (prompt, max_tokens), answer in zip(batch, answers, strict=True):
        first = 1 if len(prompt) + HEADROOM <= TRAINED else LONGEST
        choices, logprobs = oracle.score(prompt, answer.token_ids, first)
        assert answer.token_ids == choices
        assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_AFTER_CROSSING
        crosses = first == 1 and len(prompt) + max_tokens > TRAINED + 1
        assert answer.posenc is not None
        assert [crossing["at"] for crossing in answer.posenc["crossings"]] == [TRAINED] * crosses
        if crosses:  # what other engines do: long factors from the first token on
            _, static = oracle.score(prompt, answer.token_ids, LONGEST)
            assert max(abs(a - b) for a, b in zip(answer.logprobs, static, strict=True)) > LOGPROB_WRONG_SCALE
