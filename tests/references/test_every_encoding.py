"""What the oracles of all encodings have in common: who reads what, and that positions and heads matter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.references.alibi import alibi_attention, alibi_slopes, alibi_sqrt_attention
from tests.references.cope import cope_attention_of_the_listing, cope_attention_of_the_repository
from tests.references.drawn_sequence import (
    COPE_TABLE,
    HEAD_DIM,
    HEADS,
    INV_FREQ,
    KV_HEADS,
    R1,
    R2,
    SCALE,
    assert_differ,
    assert_same,
    draw,
    sequence,
)
from tests.references.kerple import kerple_log_attention, kerple_power_attention
from tests.references.no_position import no_position_attention
from tests.references.rotary import rotary_attention
from tests.references.shaw import shaw_attention
from tests.references.t5 import t5_attention
from tests.references.transformer_xl import transformer_xl_attention
from tests.references.xpos import xpos_attention

Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def with_parameters(attention: Callable[..., Tensor], *parameters: object, **options: object) -> Attention:
    return lambda query, key, value, scale: attention(query, key, value, scale, *parameters, **options)


ENCODINGS = {
    "none": no_position_attention,
    "ALiBi": with_parameters(alibi_attention, alibi_slopes(HEADS)),
    "ALiBi of the root": with_parameters(alibi_sqrt_attention, alibi_slopes(HEADS)),
    "KERPLE, logarithm": with_parameters(kerple_log_attention, R1, R2),
    "KERPLE, power": with_parameters(kerple_power_attention, R1, R2),
    "T5": with_parameters(t5_attention, draw(8, HEADS, seed=11), max_distance=10),
    "CoPE, listing": with_parameters(cope_attention_of_the_listing, COPE_TABLE),
    "CoPE, repository": with_parameters(cope_attention_of_the_repository, COPE_TABLE),
    "CoPE, a table per head": with_parameters(cope_attention_of_the_listing, draw(HEADS, 5, HEAD_DIM, seed=12)),
    "RoPE, halves": with_parameters(rotary_attention, INV_FREQ, is_neox_style=True, attention_factor=1.2),
    "RoPE, neighbours": with_parameters(rotary_attention, INV_FREQ, is_neox_style=False),
    "XPos": with_parameters(xpos_attention, INV_FREQ, scale_base=8),
    "Shaw": with_parameters(shaw_attention, draw(7, HEAD_DIM, seed=13), draw(7, HEAD_DIM, seed=14)),
    "Shaw, tables per head": with_parameters(
        shaw_attention, draw(HEADS, 7, HEAD_DIM, seed=15), draw(HEADS, 7, HEAD_DIM, seed=16)
    ),
    "Transformer-XL": with_parameters(
        transformer_xl_attention,
        draw(HEADS, HEAD_DIM, seed=17),
        draw(HEADS, HEAD_DIM, seed=18),
        draw(HEADS, HEAD_DIM, 6, seed=19) / 3,
    ),
}
every_encoding = pytest.mark.parametrize("attention", ENCODINGS.values(), ids=ENCODINGS.keys())


@every_encoding
def test_a_token_reads_nothing_after_it(attention: Attention) -> None:
    query, key, value = sequence()
    assert_same(attention(query[:7], key[:7], value[:7], SCALE), attention(query, key, value, SCALE)[:7])


@every_encoding
def test_the_last_queries_alone_read_what_they_read_among_all(attention: Attention) -> None:
    query, key, value = sequence()
    assert_same(attention(query[-5:], key, value, SCALE), attention(query, key, value, SCALE)[-5:])


@every_encoding
def test_heads_of_a_group_read_one_key_head(attention: Attention) -> None:
    query, key, value = sequence()
    of_each = [states.repeat_interleave(HEADS // KV_HEADS, 1) for states in (key, value)]
    assert_same(attention(query, key, value, SCALE), attention(query, *of_each, SCALE))


@every_encoding
def test_tokens_in_front_that_nobody_attends_to_change_nothing(attention: Attention) -> None:
    query, key, value = sequence()
    query[..., -1], key[..., -1] = 10, 0
    unread = draw(9, KV_HEADS, HEAD_DIM, seed=7)
    unread[..., -1] = -1e4
    moved = attention(query, torch.cat((unread, key)), torch.cat((unread, value)), SCALE)
    assert_same(moved, attention(query, key, value, SCALE))


@every_encoding
def test_a_narrower_number_is_refused(attention: Attention) -> None:
    query, key, value = sequence()
    with pytest.raises(TypeError, match="float64"):
        attention(query, key, value.float(), SCALE)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "none"])
def test_positions_matter(name: str) -> None:
    assert_differ(ENCODINGS[name](*sequence(), SCALE), no_position_attention(*sequence(), SCALE))


ALIKE, OF_EACH = (0.5,) * HEADS, (0.5, 1.0, 0.1, 2.0)
VECTOR, VECTORS = draw(1, HEAD_DIM, seed=20).repeat(HEADS, 1), draw(HEADS, HEAD_DIM, seed=21)
MATRIX, MATRICES = draw(1, HEAD_DIM, 6, seed=22).repeat(HEADS, 1, 1), draw(HEADS, HEAD_DIM, 6, seed=23)
TABLE, TABLES = draw(1, 7, HEAD_DIM, seed=24).repeat(HEADS, 1, 1), draw(HEADS, 7, HEAD_DIM, seed=25)

# In each, heads differ by one parameter alone.
ONE_PARAMETER_PER_HEAD = {
    "ALiBi": with_parameters(alibi_attention, OF_EACH),
    "ALiBi of the root": with_parameters(alibi_sqrt_attention, OF_EACH),
    "KERPLE, logarithm, r1": with_parameters(kerple_log_attention, OF_EACH, ALIKE),
    "KERPLE, logarithm, r2": with_parameters(kerple_log_attention, ALIKE, OF_EACH),
    "KERPLE, power, r1": with_parameters(kerple_power_attention, OF_EACH, ALIKE),
    "KERPLE, power, r2": with_parameters(kerple_power_attention, ALIKE, OF_EACH),
    "T5": ENCODINGS["T5"],
    "CoPE, listing": with_parameters(cope_attention_of_the_listing, TABLES),
    "CoPE, repository": with_parameters(cope_attention_of_the_repository, TABLES),
    "Shaw, keys": with_parameters(shaw_attention, TABLES, TABLE),
    "Shaw, values": with_parameters(shaw_attention, TABLE, TABLES),
    "Transformer-XL, u": with_parameters(transformer_xl_attention, VECTORS, VECTOR, MATRIX),
    "Transformer-XL, v": with_parameters(transformer_xl_attention, VECTOR, VECTORS, MATRIX),
    "Transformer-XL, projection": with_parameters(transformer_xl_attention, VECTOR, VECTOR, MATRICES),
}


@pytest.mark.parametrize("attention", ONE_PARAMETER_PER_HEAD.values(), ids=ONE_PARAMETER_PER_HEAD.keys())
def test_every_head_has_parameters_of_its_own(attention: Attention) -> None:
    query, key, value = (states[:, :1].repeat(1, HEADS, 1) for states in sequence())
    output = attention(query, key, value, SCALE)
    for head in range(1, HEADS):
        assert_differ(output[:, head], output[:, 0])
