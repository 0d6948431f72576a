"""The shipped checkpoint loads, is small, says what it was trained on, and retrieves pass keys within its window."""

from __future__ import annotations

import csv
from typing import Any

import pytest
import torch
import yaml
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from posenc_runtime.zoo import evaluate, passkey, tokenizer
from posenc_runtime.zoo.scaling import Scaling

SEED = 9_000_000


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return evaluate.load_model(evaluate.DEMO, "cpu")


@pytest.fixture(scope="module")
def tok() -> PreTrainedTokenizerFast:
    return tokenizer.load(evaluate.DEMO)


def test_the_checkpoint_is_a_plain_llama_with_a_trained_length_of_512(model: LlamaForCausalLM) -> None:
    config = model.config.to_dict()
    assert config["model_type"] == "llama"
    assert config["max_position_embeddings"] == 512
    assert config["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}
    assert config["head_dim"] == 32


def test_the_weights_are_smaller_than_12_megabytes() -> None:
    assert (evaluate.DEMO / "model.safetensors").stat().st_size < 12_000_000


def test_the_end_of_text_token_is_the_same_everywhere(model: LlamaForCausalLM, tok: PreTrainedTokenizerFast) -> None:
    assert model.config.eos_token_id == tok.eos_token_id
    assert model.generation_config is not None
    assert model.generation_config.eos_token_id == tok.eos_token_id
    assert len(tok) == model.config.vocab_size


def test_the_recipe_and_the_loss_curve_tell_how_it_was_made() -> None:
    recipe = yaml.safe_load((evaluate.DEMO / "recipe.yaml").read_text())
    assert recipe["settings"]["trained_length"] == 512
    assert max(max(stage["lengths"]) for stage in recipe["settings"]["stages"]) == 512
    assert {"corpus", "versions", "result"} <= recipe.keys()
    with (evaluate.DEMO / "loss_curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])


def test_it_answers_at_least_18_of_20_pass_keys_within_the_window(
    model: LlamaForCausalLM, tok: PreTrainedTokenizerFast
) -> None:
    correct = 0
    for length in (256, 512):
        ids, starts = evaluate.sample_ids(tok, length, 10, SEED)
        correct += evaluate.correct_answers(model, ids, starts, Scaling())
    assert correct >= 18


def test_generation_agrees_with_the_single_forward_pass_and_ends(
    model: LlamaForCausalLM, tok: PreTrainedTokenizerFast
) -> None:
    generate: Any = model.generate
    for seed in range(SEED, SEED + 5):
        sample = passkey.make_sample(tok, 256, seed)
        ids, starts = evaluate.sample_ids(tok, 256, 1, seed)
        prompt = torch.tensor([tok.encode(sample.prompt)])
        written = generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12)
        completion = "".join(tok.batch_decode(written[:, prompt.shape[1] :]))
        forward = evaluate.correct_answers(model, ids, starts, Scaling()) == 1
        assert passkey.is_correct(sample, completion) is forward
