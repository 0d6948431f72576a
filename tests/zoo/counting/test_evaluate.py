"""Errors are counted at the answer of each prompt, however prompts of different lengths are put together."""

from __future__ import annotations

import torch

from posenc_runtime.decoder.decoder import PosencForCausalLM
from posenc_runtime.zoo.counting import evaluate
from posenc_runtime.zoo.counting.recipe import Recipe
from posenc_runtime.zoo.counting.train import WATCH_SEED
from posenc_runtime.zoo.counting.vocabulary import IDS, WORDS, ids_of

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_batched_errors_are_those_of_prompts_read_alone() -> None:
    torch.manual_seed(0)
    model = PosencForCausalLM(Recipe.load(**SMALL).model_config("learned"))
    with torch.no_grad():
        model.model.position.embeddings.weight.normal_(std=2.0)
    asked = evaluate.programs(3, 20)
    wrong = 0
    for program in asked:
        with torch.no_grad():
            said = model(torch.tensor([ids_of(program)])).logits[0, -1].argmax()
        wrong += WORDS[said] != program.answer
    assert wrong > 0
    assert evaluate.count_errors(model, asked) == wrong


def test_a_decoder_that_always_says_three_is_right_where_the_answer_is_three() -> None:
    model = PosencForCausalLM(Recipe.load(**SMALL).model_config("rope"))
    with torch.no_grad():
        # Every state ends as ones, which only the word three answers to.
        model.model.embed_tokens.weight.fill_(1e-3)
        model.model.embed_tokens.weight[IDS["3"]] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    asked = evaluate.programs(1, 60)
    assert evaluate.count_errors(model, asked) == sum(program.answer != "3" for program in asked) < 60


def test_the_watched_and_the_evaluated_programs_differ() -> None:
    watched, evaluated = (evaluate.programs(3, 200, seed) for seed in (WATCH_SEED, evaluate.EVALUATION_SEED))
    assert not {program.text for program in watched} & {program.text for program in evaluated}
