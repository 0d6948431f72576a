"""Attention in blocks of queries is the same attention, for every encoding that is trained so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from posenc_runtime.decoder.positions import cope
from posenc_runtime.zoo.counting.blocks import attend_in_blocks
from posenc_runtime.zoo.counting.recipe import Recipe
from tests.decoder.tiny import CASES, TRAINED_LENGTH, model, some_ids
from tests.tolerance import LOGIT_TINY_DECODER


def test_every_encoding_of_the_recipe_is_among_the_cases() -> None:
    assert set(Recipe.load().encodings) <= set(CASES)


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("size", [5, 8, TRAINED_LENGTH])
@torch.inference_mode()
def test_blocks_change_nothing(case: str, size: int) -> None:
    ids = some_ids(batch=2, length=TRAINED_LENGTH)
    wanted = model(case)(ids, use_cache=False).logits
    split = model(case)
    attend_in_blocks(split, size)
    torch.testing.assert_close(split(ids, use_cache=False).logits, wanted, rtol=0, atol=LOGIT_TINY_DECODER)


@torch.inference_mode()
def test_no_block_reads_keys_after_its_last_query(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    original = cope.cope_attention

    def watched(query: Tensor, key: Tensor, *others: Any) -> Tensor:
        seen.append((query.shape[2], key.shape[2]))
        return original(query, key, *others)

    monkeypatch.setattr(cope, "cope_attention", watched)
    split = model("cope")
    attend_in_blocks(split, 8)
    split(some_ids(batch=1, length=20), use_cache=False)
    assert seen == [(8, 8), (8, 16), (4, 20)] * 2
