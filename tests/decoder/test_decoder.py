"""What holds for every encoding: caches, padding, checkpoints, generation, gradients, order."""

from __future__ import annotations

import pathlib

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

from posenc_runtime.decoder import register
from posenc_runtime.decoder.decoder import PosencForCausalLM
from posenc_runtime.decoder.positions import available
from tests import tolerance
from tests.decoder.tiny import (
    ABSOLUTE,
    CASES,
    TRAINED_LENGTH,
    VOCABULARY,
    model,
    position_weights,
    some_ids,
)

every_case = pytest.mark.parametrize("case", CASES)

LAYER = "model.layers.{layer}.self_attn.position."
# What checkpoints that exist hold; an encoding that is not here may still name its weights as it likes.
POSITION_WEIGHTS: dict[str, list[str]] = {
    "alibi": [],
    "alibi_sqrt": [],
    "cope": [LAYER + "pos_emb"],
    "cope as in the authors' repository": ["model.position.pos_emb"],
    "kerple_log": ["model.position.log_r1", "model.position.log_r2"],
    "kerple_power": ["model.position.log_r1", "model.position.logit_r2"],
    "learned": ["model.position.embeddings.weight"],
    "none": [],
    "rope": [],
    "rope with yarn": [],
    "shaw": [LAYER + "key_embeddings.weight", LAYER + "value_embeddings.weight"],
    "sinusoidal": [],
    "t5": ["model.position.relative_attention_bias.weight"],
    "transformer_xl": [LAYER + "u", LAYER + "v", LAYER + "r_proj.weight"],
    "xpos": [],
}


def assert_same_logits(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance.LOGIT_TINY_DECODER)


def test_every_encoding_has_a_case_here() -> None:
    assert {case["position_encoding_type"] for case in CASES.values()} == set(available())


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * 12, [5, 1, 6]], ids=["token by token", "in chunks"])
@every_case
def test_logits_with_a_cache_are_those_of_one_forward(case: str, chunks: list[int]) -> None:
    decoder, ids = model(case), some_ids(2, 12)
    cache, found = None, []
    for chunk in ids.split(chunks, dim=1):
        output = decoder(chunk, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        found.append(output.logits)
    assert_same_logits(torch.cat(found, dim=1), decoder(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("pads", [[0, 1, 2, 3], [5, 6, 7, 8], [0, 3, 4, 7]], ids=["left", "right", "anywhere"])
@every_case
def test_logits_in_a_padded_batch_are_those_of_the_text_alone(case: str, pads: list[int]) -> None:
    decoder, ids = model(case), some_ids(2, 9)
    mask = torch.ones_like(ids)
    mask[1, pads] = 0
    alone = decoder(ids[1:, mask[1].bool()]).logits[0]
    padded = decoder(ids, attention_mask=mask).logits
    assert_same_logits(padded[1][mask[1].bool()], alone)
    assert_same_logits(padded[0], decoder(ids[:1]).logits[0])


@torch.no_grad()
@every_case
def test_decoding_after_padding_is_decoding_alone(case: str) -> None:
    decoder, ids, pads = model(case), some_ids(2, 10), 4
    mask = torch.ones_like(ids)
    mask[1, :pads] = 0
    cache = decoder(ids[:, :-2], attention_mask=mask[:, :-2], use_cache=True).past_key_values
    found = decoder(ids[:, -2:], attention_mask=mask, past_key_values=cache).logits[1]
    assert_same_logits(found, decoder(ids[1:, pads:]).logits[0, -2:])


@every_case
def test_a_saved_model_is_loaded_to_the_bit(case: str, tmp_path: pathlib.Path) -> None:
    register()
    register()
    decoder, ids = model(case), some_ids(1, 7)
    decoder.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(again) is PosencForCausalLM
    assert {name: getattr(config, name) for name in CASES[case]} == {
        name: getattr(decoder.config, name) for name in CASES[case]
    }
    expected = decoder.state_dict()
    assert again.state_dict().keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in again.state_dict().items())
    with torch.no_grad():
        assert torch.equal(again(ids).logits, decoder(ids).logits)


@pytest.mark.parametrize("case", POSITION_WEIGHTS)
def test_weights_of_positions_have_these_names(case: str) -> None:
    expected = {name.format(layer=layer) for name in POSITION_WEIGHTS[case] for layer in range(2)}
    assert set(position_weights(model(case))) == expected


@every_case
def test_generation_continues_each_text_of_a_padded_batch_as_alone(case: str) -> None:
    decoder, ids, pads, new = model(case), some_ids(2, 8), 3, 6
    mask = torch.ones_like(ids)
    mask[1, :pads] = 0
    found = decoder.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0)
    for row, first in enumerate((0, pads)):
        text = ids[row : row + 1, first:]
        for _ in range(new):
            with torch.no_grad():
                best = decoder(text, use_cache=False).logits[:, -1:].argmax(-1)
            text = torch.cat((text, best), dim=1)
        assert torch.equal(found[row, first:], text[0])


@every_case
def test_generation_goes_past_the_trained_length_where_positions_have_no_end(case: str) -> None:
    decoder, ids = model(case), some_ids(1, TRAINED_LENGTH - 2)
    if case in ABSOLUTE:
        with pytest.raises(ValueError, match=f"at most max_position_embeddings {TRAINED_LENGTH} tokens"):
            decoder.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
        ids = ids[:, 2:]
    found = decoder.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert found.shape == (1, ids.shape[1] + 4)


@pytest.mark.parametrize("case", ABSOLUTE)
def test_padding_takes_no_trained_position(case: str) -> None:
    ids = some_ids(1, TRAINED_LENGTH + 3)
    mask = torch.ones_like(ids)
    mask[:, :3] = 0
    with torch.no_grad():
        padded = model(case)(ids, attention_mask=mask).logits[:, 3:]
        assert_same_logits(padded, model(case)(ids[:, 3:]).logits)


@every_case
def test_a_loss_reaches_every_weight_of_a_position(case: str) -> None:
    decoder, ids = model(case).train(), some_ids(2, 20)
    output = decoder(ids, labels=ids)
    assert output.past_key_values is None
    expected = torch.nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(output.loss, expected)
    output.loss.backward()
    for name, weight in position_weights(decoder).items():
        assert weight.grad is not None and weight.grad.isfinite().all(), name
        rows = weight.grad.flatten(1).abs().sum(1) if weight.grad.ndim > 1 else weight.grad.abs()
        # Nothing is learned of the position after the last token that is predicted.
        reached = 19 if case == "learned" else len(rows)
        assert (rows[:reached] > 0).all(), f"{name} {rows}"


@torch.no_grad()
@every_case
def test_the_order_of_earlier_tokens_matters_if_and_only_if_there_is_an_encoding(case: str) -> None:
    decoder, ids = model(case, num_hidden_layers=1), torch.arange(9)[None]
    shuffled = ids[:, [3, 1, 7, 0, 5, 2, 6, 4, 8]]
    last, other = decoder(ids).logits[0, -1], decoder(shuffled).logits[0, -1]
    if case == "none":
        assert_same_logits(other, last)
    else:
        assert (other - last).abs().max() > 100 * tolerance.LOGIT_TINY_DECODER


@torch.no_grad()
@every_case
def test_bfloat16_models_compute(case: str) -> None:
    decoder, ids = model(case), some_ids(1, 9)
    rough = model(case).bfloat16()(ids).logits
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), decoder(ids).logits, rtol=0, atol=tolerance.LOGIT_TINY_DECODER_BFLOAT16)


@torch.no_grad()
@every_case
def test_attention_can_be_asked_of_a_layer_in_any_precision(case: str) -> None:
    decoder = model(case)
    attention = decoder.model.layers[0].self_attn
    position = attention.position if hasattr(attention, "position") else decoder.model.position
    draws = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 11, 8, generator=draws, dtype=torch.float64) for heads in (4, 2, 2))
    exact = position.attention(query, key, value, scale=0.4)
    assert exact.dtype == torch.float64 and exact.shape == query.shape
    single = position.attention(query.float(), key.float(), value.float(), scale=0.4)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=tolerance.ATTENTION_FLOAT32)
    # Sums are float32 whatever is summed.
    assert position.attention(query.bfloat16(), key.bfloat16(), value.bfloat16(), scale=0.4).dtype == torch.float32


def test_positions_that_the_mask_does_not_count_are_refused() -> None:
    decoder, ids = model("rope"), some_ids(2, 6)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    counted = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    with torch.no_grad():
        decoder(ids, attention_mask=mask, position_ids=counted)
    with pytest.raises(ValueError, match="position_ids must count"):
        decoder(ids, attention_mask=mask, position_ids=torch.arange(6)[None])


def test_a_mask_without_the_cached_tokens_is_refused() -> None:
    decoder, ids = model("rope"), some_ids(1, 6)
    cache = decoder(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"attention_mask must be \[batch, 8\]"):
        decoder(ids[:, :2], attention_mask=torch.ones(1, 2), past_key_values=cache)


def test_what_is_not_there_is_refused() -> None:
    decoder, ids = model("rope"), some_ids(1, 6)
    with pytest.raises(ValueError, match="must be a DynamicCache"):
        decoder(ids, past_key_values=StaticCache(config=decoder.config, max_cache_len=8))
    with pytest.raises(ValueError, match="output_attentions must be false"):
        decoder(ids, output_attentions=True)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        decoder()


@torch.no_grad()
def test_outputs_are_transformers_outputs() -> None:
    decoder, ids = model("rope", tie_word_embeddings=True), some_ids(2, 6)
    assert decoder.lm_head.weight is decoder.model.embed_tokens.weight
    output = decoder(inputs_embeds=decoder.model.embed_tokens(ids), output_hidden_states=True, logits_to_keep=2)
    assert output.logits.shape == (2, 2, VOCABULARY)
    assert len(output.hidden_states) == 3
    assert_same_logits(decoder.lm_head(output.hidden_states[-1][:, -2:]), decoder(ids, return_dict=False)[0][:, -2:])
