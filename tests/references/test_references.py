"""The oracles of attention against sums done by hand, published numbers, other implementations and limiting cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as rotate_as_gptj
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_as_llama
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from tests.references.alibi import alibi_attention, alibi_slopes, alibi_sqrt_attention
from tests.references.cope import cope_attention_of_the_listing, cope_attention_of_the_repository
from tests.references.kerple import kerple_log_attention, kerple_power_attention
from tests.references.no_position import no_position_attention
from tests.references.rotary import positions_of, rotary_attention
from tests.references.shaw import shaw_attention
from tests.references.sinusoidal import sinusoidal_table
from tests.references.t5 import t5_attention, t5_bucket
from tests.references.transformer_xl import transformer_xl_attention
from tests.references.xpos import xpos_attention
from tests.tolerance import ALIBI_BIAS_RELATIVE, ENCODINGS_DIFFER, ORACLE_FLOAT64

HEADS, KV_HEADS, HEAD_DIM, KEYS, SCALE = 4, 2, 8, 13, 0.4

Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sequence(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    query = draw(KEYS, HEADS, HEAD_DIM, seed=seed)
    return query, draw(KEYS, KV_HEADS, HEAD_DIM, seed=seed + 1), draw(KEYS, KV_HEADS, HEAD_DIM, seed=seed + 2)


def with_parameters(attention: Callable[..., Tensor], *parameters: object, **options: object) -> Attention:
    return lambda query, key, value, scale: attention(query, key, value, scale, *parameters, **options)


R1, R2 = (0.5, 1.0, 0.1, 2.0), (1.5, 0.3, 1.0, 0.7)
# Three pairs of eight dimensions: the last two are not rotated.
INV_FREQ = torch.tensor([1.0, 0.3, 0.02], dtype=torch.float64)
COPE_TABLE = draw(5, HEAD_DIM, seed=10)

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


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=ORACLE_FLOAT64, atol=ORACLE_FLOAT64)


def assert_differ(one: Tensor, other: Tensor) -> None:
    assert (one - other).abs().max() > ENCODINGS_DIFFER


def weighted(scores: list[float], values: list[float]) -> float:
    weights = [math.exp(score) for score in scores]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def one_head(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)[:, None]


# Three tokens, of which the last asks: products 1, 5 and 4 with the keys, values 10, 20 and 40.
QUERY, THREE_KEYS, THREE_VALUES = one_head([1, 2]), one_head([3, -1], [1, 2], [0, 2]), one_head([10], [20], [40])
VALUES = [10.0, 20.0, 40.0]


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


def test_without_positions_weights_are_the_softmax_of_scaled_products() -> None:
    output = no_position_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5)
    assert output.item() == pytest.approx(weighted([0.5, 2.5, 2.0], VALUES), rel=ORACLE_FLOAT64)


def test_without_positions_it_is_torch_s_attention() -> None:
    query, key, value = sequence()
    visible = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    states = [tensor.transpose(0, 1)[None] for tensor in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *states, attn_mask=visible, scale=SCALE, enable_gqa=True
    )
    assert_same(no_position_attention(query, key, value, SCALE), expected[0].transpose(0, 1))


def test_alibi_falls_by_a_slope_per_token() -> None:
    output = alibi_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, [0.75])
    expected = weighted([0.5 - 2 * 0.75, 2.5 - 0.75, 2.0], VALUES)
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_alibi_of_the_root_falls_by_a_slope_times_the_root_of_the_distance() -> None:
    output = alibi_sqrt_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, [0.75])
    expected = weighted([0.5 - math.sqrt(2) * 0.75, 2.5 - 0.75, 2.0], VALUES)
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_alibi_slopes_of_8_heads_are_the_paper_s() -> None:
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_alibi_slopes_of_16_heads_are_the_paper_s() -> None:
    assert alibi_slopes(16) == pytest.approx([0.5 ** (half / 2) for half in range(1, 17)], rel=ORACLE_FLOAT64)


def test_alibi_slopes_of_12_heads_are_those_of_8_and_every_other_of_16() -> None:
    assert alibi_slopes(12)[:8] == alibi_slopes(8)
    expected = [0.5**0.5, 0.5**1.5, 0.5**2.5, 0.5**3.5]
    assert alibi_slopes(12)[8:] == pytest.approx(expected, rel=ORACLE_FLOAT64)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 40, 71])
def test_alibi_is_bloom_s(num_heads: int) -> None:
    published = build_alibi_tensor(torch.ones(1, 33), num_heads, torch.float32)[:, 0].double()
    # BLOOM counts from the first key, which adds the same to all scores of a query.
    biases = published - published[:, -1:]
    expected = -torch.tensor(alibi_slopes(num_heads), dtype=torch.float64)[:, None] * torch.arange(32, -1, -1)
    largest = (expected[:, :1].abs() * ALIBI_BIAS_RELATIVE).expand_as(expected)
    assert ((biases - expected).abs() <= largest).all()


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 40, 71])
def test_alibi_is_mpt_s(num_heads: int) -> None:
    published = build_mpt_alibi_tensor(num_heads, 33)[:, 0].double()
    expected = -torch.tensor(alibi_slopes(num_heads), dtype=torch.float64)[:, None] * torch.arange(32, -1, -1)
    torch.testing.assert_close(published, expected, rtol=ALIBI_BIAS_RELATIVE, atol=0)


def test_kerple_falls_with_the_logarithm_of_the_distance() -> None:
    output = kerple_log_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, [0.75], [3.0])
    expected = weighted([0.5 - 0.75 * math.log(7), 2.5 - 0.75 * math.log(4), 2.0], VALUES)
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_kerple_falls_with_a_power_of_the_distance() -> None:
    output = kerple_power_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, [0.75], [1.5])
    expected = weighted([0.5 - 0.75 * 2**1.5, 2.5 - 0.75, 2.0], VALUES)
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_kerple_of_the_first_power_is_alibi() -> None:
    power = kerple_power_attention(*sequence(), SCALE, R1, [1.0] * HEADS)
    assert_same(power, alibi_attention(*sequence(), SCALE, R1))


def test_kerple_of_the_power_of_a_half_is_alibi_of_the_root() -> None:
    power = kerple_power_attention(*sequence(), SCALE, R1, [0.5] * HEADS)
    assert_same(power, alibi_sqrt_attention(*sequence(), SCALE, R1))


def test_t5_adds_the_bias_of_a_bucket() -> None:
    table = torch.tensor([[0.25], [-1.0], [2.0], [9.0]], dtype=torch.float64)
    output = t5_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, table, max_distance=8)
    assert output.item() == pytest.approx(weighted([0.5 + 2.0, 2.5 - 1.0, 2.0 + 0.25], VALUES), rel=ORACLE_FLOAT64)


def test_t5_s_last_bucket_begins_below_the_largest_distance() -> None:
    table = torch.tensor([[0.0], [0.0], [0.0], [2.0]], dtype=torch.float64)
    query, key, value = one_head([0]), one_head(*[[1]] * 6), one_head([1], [2], [3], [4], [5], [6])
    output = t5_attention(query, key, value, 1.0, table, max_distance=8)
    # 4 and 5 tokens away, as the next test has it.
    expected = weighted([2.0, 2.0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_half_of_t5_s_buckets_hold_one_distance_each() -> None:
    # 2 + log(n / 2) / log(4) * 2: 2 at 2, 2.6 at 3, 3 at 4.
    assert [t5_bucket(distance, 4, 8) for distance in range(10)] == [0, 1, 2, 2, 3, 3, 3, 3, 3, 3]


def test_t5_s_32_buckets_begin_at_its_distances() -> None:
    first = {}
    for distance in range(200):
        first.setdefault(t5_bucket(distance), distance)
    # 16 * 8^(k / 16), rounded up.
    later = [19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert list(first.items()) == list(enumerate([*range(17), *later]))


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (64, 128), (32, 256), (16, 1000), (7, 20)])
def test_t5_s_buckets_are_those_of_transformers(num_buckets: int, max_distance: int) -> None:
    distances = range(3000)
    published = T5Attention._relative_position_bucket(
        -torch.tensor(distances), bidirectional=False, num_buckets=num_buckets, max_distance=max_distance
    )
    assert [t5_bucket(distance, num_buckets, max_distance) for distance in distances] == published.tolist()


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


# Products 0.6 and -0.4 with two keys; scaled by a half 0.3 and -0.2.
COPE_PAIR = (one_head([2, -1]), one_head([0.5, 0.4], [0.1, 0.6]), one_head([10], [20]))
# Products of the query with the embeddings of positions 0, 1 and 2: 1, -2 and 3.
COPE_HAND_TABLE = torch.tensor([[1, 1], [0, 2], [2, 1]], dtype=torch.float64)
COPE_OWN = sigmoid(-0.2)
COPE_BOTH = sigmoid(-0.2) + sigmoid(0.3)


def cope_position_products() -> list[float]:
    assert 0 < COPE_OWN < 1 < COPE_BOTH < 2
    own = COPE_OWN * -2 + (1 - COPE_OWN) * 1
    return [(COPE_BOTH - 1) * 3 + (2 - COPE_BOTH) * -2, own]


def test_cope_of_the_listing_adds_the_position_unscaled() -> None:
    output = cope_attention_of_the_listing(*COPE_PAIR, 0.5, COPE_HAND_TABLE)
    first, own = cope_position_products()
    assert output.item() == pytest.approx(weighted([0.3 + first, -0.2 + own], VALUES[:2]), rel=ORACLE_FLOAT64)


def test_cope_of_the_repository_scales_content_and_position_together() -> None:
    output = cope_attention_of_the_repository(*COPE_PAIR, 0.5, COPE_HAND_TABLE)
    first, own = cope_position_products()
    expected = weighted([0.3 + first / 2, -0.2 + own / 2], VALUES[:2])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_positions_of_cope_end_with_the_table() -> None:
    output = cope_attention_of_the_listing(*COPE_PAIR, 0.5, COPE_HAND_TABLE[:2])
    own = cope_position_products()[1]
    assert output.item() == pytest.approx(weighted([0.3 - 2, -0.2 + own], VALUES[:2]), rel=ORACLE_FLOAT64)


def test_open_gates_of_cope_count_tokens() -> None:
    query, key, value = sequence()
    query[..., 0], key[..., 0] = 50, 4
    expected = torch.empty_like(query)
    for head in range(HEADS):
        keys, values = key[:, head // 2], value[:, head // 2]
        for i in range(KEYS):
            # All gates are 1: a key is as many tokens away as lie from it to the query, both included.
            embedded = torch.stack([COPE_TABLE[min(i - j + 1, 4)] for j in range(i + 1)])
            scores = SCALE * keys[: i + 1] @ query[i, head] + embedded @ query[i, head]
            expected[i, head] = scores.softmax(0) @ values[: i + 1]
    assert_same(cope_attention_of_the_listing(query, key, value, SCALE, COPE_TABLE), expected)


@pytest.mark.parametrize("attention", [cope_attention_of_the_listing, cope_attention_of_the_repository])
def test_cope_with_a_table_of_zeros_encodes_nothing(attention: Callable[..., Tensor]) -> None:
    output = attention(*sequence(), SCALE, torch.zeros_like(COPE_TABLE))
    assert_same(output, no_position_attention(*sequence(), SCALE))


def test_conventions_of_cope_differ_by_the_scale_of_the_table() -> None:
    repository = cope_attention_of_the_repository(*sequence(), SCALE, COPE_TABLE)
    assert_same(repository, cope_attention_of_the_listing(*sequence(), SCALE, SCALE * COPE_TABLE))
    assert_differ(repository, cope_attention_of_the_listing(*sequence(), SCALE, COPE_TABLE))


# The query asks from position 1, two frequencies; only its first component is not zero.
ROTARY_PAIR = (one_head([1, 0, 0, 0]), one_head([1, 2, 3, 4], [5, 6, 7, 8]), one_head([10], [20]))
TWO_FREQUENCIES = torch.tensor([0.5, 0.1], dtype=torch.float64)


def test_rope_in_halves_pairs_a_dimension_with_one_half_a_head_away() -> None:
    output = rotary_attention(*ROTARY_PAIR, 0.5, TWO_FREQUENCIES, is_neox_style=True)
    expected = weighted([(math.cos(0.5) * 1 + math.sin(0.5) * 3) / 2, 5 / 2], VALUES[:2])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_rope_in_neighbours_pairs_a_dimension_with_the_next() -> None:
    output = rotary_attention(*ROTARY_PAIR, 0.5, TWO_FREQUENCIES, is_neox_style=False)
    expected = weighted([(math.cos(0.5) * 1 + math.sin(0.5) * 2) / 2, 5 / 2], VALUES[:2])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_rope_leaves_dimensions_beyond_its_pairs_alone() -> None:
    query = one_head([1, 0, 0, 10])
    output = rotary_attention(query, *ROTARY_PAIR[1:], 0.5, TWO_FREQUENCIES[:1], is_neox_style=True, attention_factor=2)
    # The factor multiplies what is rotated, in the query and in the key.
    rotated = [math.cos(0.5) * 1 + math.sin(0.5) * 2, 5]
    expected = weighted([(4 * rotated[0] + 40) / 2, (4 * rotated[1] + 80) / 2], VALUES[:2])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_rope_in_halves_is_llama_s() -> None:
    query, key, value = sequence()
    inv_freq = torch.tensor([1.0, 0.3, 0.02, 0.001], dtype=torch.float64)
    angle = (torch.arange(KEYS, dtype=torch.float64)[:, None] * inv_freq).repeat(1, 2)[None]
    turned = rotate_as_llama(query.transpose(0, 1)[None], key.transpose(0, 1)[None], angle.cos(), angle.sin())
    expected = no_position_attention(*(states[0].transpose(0, 1) for states in turned), value, SCALE)
    assert_same(rotary_attention(query, key, value, SCALE, inv_freq, is_neox_style=True), expected)


def test_rope_in_neighbours_is_gpt_j_s() -> None:
    query, key, value = sequence()
    inv_freq = torch.tensor([1.0, 0.3, 0.02, 0.001], dtype=torch.float64)
    angle = (torch.arange(KEYS, dtype=torch.float64)[:, None] * inv_freq)[None]
    turned = [rotate_as_gptj(states[None], angle.sin(), angle.cos())[0] for states in (query, key)]
    expected = no_position_attention(*turned, value, SCALE)
    assert_same(rotary_attention(query, key, value, SCALE, inv_freq, is_neox_style=False), expected)


def test_positions_may_begin_anywhere() -> None:
    assert positions_of(THREE_KEYS, 100).tolist() == [100, 101, 102]


@pytest.mark.parametrize("is_neox_style", [True, False])
def test_rope_knows_only_differences_of_positions(is_neox_style: bool) -> None:
    here, there = (
        rotary_attention(*sequence(), SCALE, INV_FREQ, is_neox_style=is_neox_style, first_position=first)
        for first in (0, 100)
    )
    assert_same(here, there)


def test_xpos_shrinks_scores_with_the_distance() -> None:
    query = one_head([1, 0, 1, 0])
    output = xpos_attention(query, *ROTARY_PAIR[1:], 0.5, TWO_FREQUENCIES, scale_base=3)
    # zeta is (0 + 0.4) / 1.4 and (0.5 + 0.4) / 1.4.
    first = (2 / 7) ** (1 / 3) * (math.cos(0.5) * 1 + math.sin(0.5) * 2)
    second = (9 / 14) ** (1 / 3) * (math.cos(0.1) * 3 + math.sin(0.1) * 4)
    expected = weighted([(first + second) / 2, (5 + 7) / 2], VALUES[:2])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


@pytest.mark.parametrize("is_neox_style", [True, False])
def test_xpos_with_an_infinite_scale_base_is_rope(is_neox_style: bool) -> None:
    output = xpos_attention(*sequence(), SCALE, INV_FREQ, is_neox_style=is_neox_style, scale_base=math.inf)
    assert_same(output, rotary_attention(*sequence(), SCALE, INV_FREQ, is_neox_style=is_neox_style))


def test_xpos_knows_only_differences_of_positions() -> None:
    here, there = (
        xpos_attention(*sequence(), SCALE, INV_FREQ, scale_base=64, first_position=first) for first in (0, 100)
    )
    assert_same(here, there)


def test_shaw_adds_vectors_of_clipped_offsets_to_keys_and_values() -> None:
    # Offsets -1, 0 and 1, of which -1 also stands for -2; their products with the query are 4, -1 and 90.
    key_table = torch.tensor([[0, 2], [1, -1], [50, 20]], dtype=torch.float64)
    value_table = torch.tensor([[7], [0.5], [900]], dtype=torch.float64)
    output = shaw_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, key_table, value_table)
    expected = weighted([(1 + 4) / 2, (5 + 4) / 2, (4 - 1) / 2], [10 + 7, 20 + 7, 40 + 0.5])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_shaw_with_tables_of_zeros_encodes_nothing() -> None:
    zeros = torch.zeros(7, HEAD_DIM, dtype=torch.float64)
    assert_same(shaw_attention(*sequence(), SCALE, zeros, zeros), no_position_attention(*sequence(), SCALE))


def test_transformer_xl_adds_content_distance_and_both_biases() -> None:
    u, v = torch.tensor([[0.5, 0.25]], dtype=torch.float64), torch.tensor([[-0.5, 3]], dtype=torch.float64)
    projection = torch.tensor([[[2, 1], [0, -1]]], dtype=torch.float64)
    output = transformer_xl_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, u, v, projection)

    def of_distance(distance: int) -> float:
        relative_key = [2 * math.sin(distance) + math.cos(distance), -math.cos(distance)]
        return (1 - 0.5) * relative_key[0] + (2 + 3) * relative_key[1]

    of_content = [1 + 1.25, 5 + 1.0, 4 + 0.5]
    scores = [(content + of_distance(2 - j)) / 2 for j, content in enumerate(of_content)]
    assert output.item() == pytest.approx(weighted(scores, VALUES), rel=ORACLE_FLOAT64)


def test_transformer_xl_without_biases_and_distances_encodes_nothing() -> None:
    nothing = torch.zeros(HEADS, HEAD_DIM, dtype=torch.float64)
    output = transformer_xl_attention(*sequence(), SCALE, nothing, nothing, nothing[..., None].repeat(1, 1, 6))
    assert_same(output, no_position_attention(*sequence(), SCALE))


def test_the_layout_of_transformer_xl_s_sinusoids_is_an_order_of_columns() -> None:
    u, v, projection = draw(HEADS, HEAD_DIM), draw(HEADS, HEAD_DIM, seed=1), draw(HEADS, HEAD_DIM, 6, seed=2)
    reordered = projection[..., [0, 2, 4, 1, 3, 5]]
    alternating = transformer_xl_attention(*sequence(), SCALE, u, v, projection, sines_first=False)
    assert_same(transformer_xl_attention(*sequence(), SCALE, u, v, reordered), alternating)
    assert_differ(transformer_xl_attention(*sequence(), SCALE, u, v, projection), alternating)


def test_sine_and_cosine_of_a_frequency_are_neighbours() -> None:
    expected = [[0, 1, 0, 1], [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]]
    assert_same(sinusoidal_table(2, 4), torch.tensor(expected, dtype=torch.float64))


def test_sines_may_come_before_cosines() -> None:
    expected = [[0, 0, 1, 1], [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)]]
    assert_same(sinusoidal_table(2, 4, sines_first=True), torch.tensor(expected, dtype=torch.float64))


def test_the_longest_wavelength_stays_below_10000_turns() -> None:
    table = sinusoidal_table(3, 512)
    assert table[2, 510].item() == pytest.approx(math.sin(2 / 10000 ** (510 / 512)), rel=ORACLE_FLOAT64)
    assert table.shape == (3, 512)


def test_an_odd_width_ends_with_a_sine() -> None:
    expected = [[0, 1, 0], [math.sin(1), math.cos(1), math.sin(10000 ** (-2 / 3))]]
    assert_same(sinusoidal_table(2, 3), torch.tensor(expected, dtype=torch.float64))
