"""A model is scaled within a block and gets its own frequencies back after it."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from posenc_runtime.zoo.muon import orthogonalized
from posenc_runtime.zoo.recipe import Recipe
from posenc_runtime.zoo.scaling import Scaling, factor_for, scaled


@pytest.mark.parametrize(("tokens", "factor"), [(1, 1), (512, 1), (513, 2), (1024, 2), (1025, 4), (4096, 8)])
def test_the_factor_is_the_next_power_of_two(tokens: int, factor: float) -> None:
    assert factor_for(tokens, 512) == factor


def test_a_scaled_block_changes_the_model_and_then_gives_it_back() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(Recipe(num_hidden_layers=1).model_config(0))
    ids = torch.arange(1, 41)[None]
    before = model(ids).logits
    with scaled(model, Scaling("yarn", 8.0)):
        assert not torch.allclose(model(ids).logits, before)
    assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 4, 16), (2, 16, 4)])
def test_orthogonalizing_brings_singular_values_close_to_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalized(torch.randn(shape), iterations=10))
    assert 0.5 < float(values.min()) <= float(values.max()) < 1.5
