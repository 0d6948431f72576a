"""Llama 3.1's rotation past its trained length: what its checkpoint says, and what nobody has to say."""

from __future__ import annotations

import dataclasses

import pytest

from posenc_runtime.encodings.scaling import own
from posenc_runtime.encodings.scaling.llama3 import Llama3
from posenc_runtime.encodings.spec import RotarySpec

LLAMA_3_1 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SPEC = RotarySpec(rotary_dim=128, rope_theta=500_000.0, original_max_position_embeddings=131_072)


def test_a_checkpoints_trained_length_is_not_the_original_of_its_rope_parameters() -> None:
    trained, parameters, _ = own("llama3").of_checkpoint(LLAMA_3_1, 131_072)
    assert trained == 131_072
    assert Llama3(**parameters) == Llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, old_context_len=8192)


def test_a_scale_slows_the_pairs_that_the_checkpoint_slows_and_no_others() -> None:
    method = Llama3(**own("llama3").of_checkpoint(LLAMA_3_1, 131_072)[1])
    unscaled, doubled = (method.frequencies(SPEC, scale) for scale in (1.0, 2.0))
    slowed = unscaled.inv_freq / doubled.inv_freq
    # 8,192 tokens hold 4 turns of pair 28 and 1 turn of pair 35: wavelengths of 1,956 and 8,218.
    assert (slowed[:29] == 1).all() and (slowed[35:] == 2).all()
    assert ((slowed[29:35] > 1) & (slowed[29:35] < 2)).all()
    assert doubled.attention_factor == 1


def test_the_length_before_the_tuning_is_no_trained_length() -> None:
    method = Llama3(**own("llama3").of_checkpoint(LLAMA_3_1, 131_072)[1])
    short = dataclasses.replace(SPEC, original_max_position_embeddings=8192)
    with pytest.raises(ValueError, match=r"must exceed old_context_len 8192, .* got 8192: leave original_max"):
        method.frequencies(short, 1.0)


def test_what_neither_the_checkpoint_nor_the_settings_say_is_named() -> None:
    with pytest.raises(ValueError, match="low_freq_factor, old_context_len must be given where the checkpoint's"):
        Llama3(factor=8.0, high_freq_factor=4.0).frequencies(SPEC, 1.0)
