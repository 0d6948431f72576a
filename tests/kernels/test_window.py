"""The window's bound, attacked: whatever queries and keys are, what is skipped weighs less than was allowed."""

from __future__ import annotations

import math

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc_runtime.encodings.distance import BiasForm, Linear, Log, Power
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.window import Window, first_keys
from posenc_runtime.kernels.cpu import attention
from posenc_runtime.kernels.cpu.layout import keys_and_values
from tests.tolerance import SOME_FLOAT32_OPERATIONS

HEAD_DIM, BLOCK_SIZE = 16, 32

numbers = st.floats(-40, 40, width=32)
positives = st.floats(2**-8, 8, width=32)
forms = st.one_of(
    st.builds(lambda slope: Linear(torch.tensor([slope])), positives),
    st.builds(
        lambda slope, exponent: Power(torch.tensor([slope]), torch.tensor([exponent])),
        positives,
        st.floats(0.25, 2, width=32),
    ),
    st.builds(lambda slope, rate: Log(torch.tensor([slope]), torch.tensor([rate])), positives, positives),
)


@st.composite
def sequences(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A query, and keys along it or against it: Cauchy-Schwarz is tight, and any key may outweigh all others."""
    length = draw(st.integers(1, 200))
    query = torch.zeros(HEAD_DIM)
    query[0] = draw(numbers)
    keys = torch.zeros(length, HEAD_DIM)
    keys[:, 0] = draw(numbers)  # what the own key is like, and those near by
    for place in draw(st.lists(st.integers(0, length - 1), max_size=5)):
        keys[place, 0] = draw(numbers)
        keys[place, 1] = draw(numbers)
    return query, keys


def run(query: Tensor, keys: Tensor, form: BiasForm, tolerance: float) -> tuple[Tensor, Tensor, Window, Tensor]:
    """The last token's attention by the kernel, dense and windowed, the window, and the first key by the reference."""
    length = len(keys)
    blocks = -(-length // BLOCK_SIZE)
    cache = torch.full((blocks, 1, BLOCK_SIZE, 2 * HEAD_DIM), math.nan)
    norms = torch.full((blocks, 1, BLOCK_SIZE), math.nan)
    # values tell which keys were read: each has a dimension of its own
    values = torch.zeros(length, 1, HEAD_DIM)
    values[torch.arange(length), 0, torch.arange(length) % HEAD_DIM] = 1.0
    attention.store(keys[:, None], values, cache, torch.arange(length), norms)
    batch = PagedBatch(
        torch.arange(blocks, dtype=torch.int32)[None],
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([length], dtype=torch.int32),
        1,
        length,
    )
    window = Window(norms, tolerance, torch.zeros(2, dtype=torch.int64))
    bias = attention.TabledBias(form, length)
    dense, windowed = torch.empty(1, 1, HEAD_DIM), torch.empty(1, 1, HEAD_DIM)
    attention.bias_attention(query.view(1, 1, -1), cache, batch, bias, 0.25, dense)
    attention.bias_attention(query.view(1, 1, -1), cache, batch, bias, 0.25, windowed, window)
    key_cache, _ = keys_and_values(cache)
    return dense, windowed, window, first_keys(query.view(1, 1, -1), key_cache, batch, form, 0.25, window)


@settings(max_examples=300, derandomize=True)
@given(sequence=sequences(), form=forms, tolerance=st.sampled_from([1e-1, 1e-3, 1e-6]))
@example(
    # the own key points away, one far back points along: the floor must be the own key's logit and not 0
    sequence=(
        torch.eye(HEAD_DIM)[0] * 8,
        torch.cat((torch.eye(HEAD_DIM)[:1] * 8, -torch.eye(HEAD_DIM)[:1].repeat(150, 1) * 8)),
    ),
    form=Linear(torch.tensor([0.2])),
    tolerance=1e-3,
)
def test_what_is_skipped_weighs_less_than_the_tolerance(
    sequence: tuple[Tensor, Tensor], form: BiasForm, tolerance: float
) -> None:
    query, keys = sequence
    dense, windowed, _, first = run(query, keys, form, tolerance)
    distance = torch.arange(len(keys) - 1, -1, -1, dtype=torch.float64)
    weights = (keys.double() @ query.double() * 0.25 + form.bias(distance)[0].double()).softmax(-1)
    assert weights[: int(first)].sum() <= tolerance
    assert (windowed - dense).abs().max() <= 2 * tolerance + SOME_FLOAT32_OPERATIONS


def test_steep_heads_of_a_long_context_read_what_the_closed_form_says() -> None:
    length, tolerance = 4096, 1e-3
    query, keys = torch.zeros(HEAD_DIM), torch.zeros(length, HEAD_DIM)
    query[0], keys[:, 0] = 4.0, 1.0  # every logit is 1, so R is ln(N / tolerance)
    for slope in (0.5, 0.25, 1 / 16, 1 / 256):
        _, _, window, _ = run(query, keys, Linear(torch.tensor([slope])), tolerance)
        reach = math.log(length / tolerance) / slope
        blocks = min(length // BLOCK_SIZE, math.floor(reach / BLOCK_SIZE) + 1)
        # four chunks of keys round up on their own, and the bound has a hundredth to spare
        assert blocks <= int(window.counts[0]) <= blocks + 1
        assert int(window.counts.sum()) == length // BLOCK_SIZE
