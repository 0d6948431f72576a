"""The C++ attention kernels against references written from the papers, which share nothing with them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posenc_runtime.encodings.bias.t5 import T5
from posenc_runtime.encodings.distance import BiasForm, Flat, Linear, Log, Power
from posenc_runtime.kernels.attention import reference as attention_reference
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.window import Window, first_keys, record_key_norms
from posenc_runtime.kernels.cpu import attention
from posenc_runtime.kernels.cpu.layout import keys_and_values
from tests.kernels.saturation import walked
from tests.references.alibi import alibi_attention
from tests.references.cope import cope_attention_of_the_listing, cope_attention_of_the_repository
from tests.references.kerple import kerple_log_attention, kerple_power_attention
from tests.references.no_position import no_position_attention
from tests.references.t5 import t5_attention
from tests.tolerance import ATTENTION_TIMES_TORCH, SOME_FLOAT32_OPERATIONS

pytestmark = pytest.mark.slow  # the kernels are compiled

Reference = Callable[[Tensor, Tensor, Tensor, float], Tensor]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Requests of a step: of each its tokens and how many of them are queries."""

    requests: tuple[tuple[int, int], ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 32

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


SHAPES = [
    pytest.param(
        Shape(((33, 33), (1, 1), (70, 5)), 12, 12, 64), id="12 heads, a prompt, one token, a chunk after a hit"
    ),
    pytest.param(Shape(((31, 1), (32, 1), (33, 1), (65, 2)), 8, 1, 48), id="8 heads to 1, at the edges of blocks"),
    pytest.param(Shape(((97, 97), (64, 32)), 4, 2, 80, 64), id="head_dim 80, tiles of queries that end in a block"),
    pytest.param(Shape(((1024, 1), (1025, 1), (2100, 2)), 3, 3, 16, 128), id="chunks of keys, at their edges"),
    pytest.param(Shape(((1100, 40),), 2, 1, 32, 128), id="more queries than a task takes, and more keys than a chunk"),
]


class Batch:
    """Requests with random keys and values in shuffled blocks; what no kernel may read is not a number."""

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32, size: float = 1.0) -> None:
        self.shape = shape
        draw = torch.Generator().manual_seed(3)
        of_keys = (shape.num_kv_heads, shape.head_dim)
        self.keys = [(size * torch.randn(total, *of_keys, generator=draw)).to(dtype) for total, _ in shape.requests]
        self.values = [torch.randn(total, *of_keys, generator=draw).to(dtype) for total, _ in shape.requests]
        self.queries = [
            (size * torch.randn(own, shape.num_heads, shape.head_dim, generator=draw)).to(dtype)
            for _, own in shape.requests
        ]
        padding = torch.full((3, shape.num_heads, shape.head_dim), math.nan, dtype=dtype)
        self.query = torch.cat((*self.queries, padding))
        num_blocks = [-(-total // shape.block_size) for total, _ in shape.requests]
        order = torch.randperm(sum(num_blocks) + 2, generator=draw).to(torch.int32)
        self.table = torch.full((len(num_blocks), max(num_blocks) + 1), -1, dtype=torch.int32)
        for row, own in zip(self.table, order[: sum(num_blocks)].split(num_blocks), strict=True):
            row[: len(own)] = own
        heads = (shape.num_kv_heads, shape.block_size)
        self.cache = torch.full((len(order), *heads, 2 * shape.head_dim), math.nan, dtype=dtype)
        self.key_norms = torch.full((len(order), *heads), math.nan)
        for row, keys, values in zip(self.table, self.keys, self.values, strict=True):
            attention.store(keys, values, self.cache, self.slots(row, len(keys)), self.key_norms)

    def slots(self, row: Tensor, num_tokens: int) -> Tensor:
        places = torch.arange(num_tokens)
        return row[places // self.shape.block_size].long() * self.shape.block_size + places % self.shape.block_size

    def paged(self) -> PagedBatch:
        totals, own = zip(*self.shape.requests, strict=True)
        begins = torch.tensor((0, *own)).cumsum(0)
        return PagedBatch(
            self.table, begins.to(torch.int32), torch.tensor(totals, dtype=torch.int32), max(own), max(totals)
        )

    def out(self) -> Tensor:
        return torch.full_like(self.query, math.nan)

    def expected(self, reference: Reference) -> Tensor:
        """float64 ``[num_tokens, num_heads, head_dim]``, without padding."""
        return torch.cat(
            [
                reference(query.double(), keys.double(), values.double(), self.shape.scale)
                for query, keys, values in zip(self.queries, self.keys, self.values, strict=True)
            ]
        )

    def in_torch(self, run: Callable[[Tensor, Tensor, Tensor, Tensor], None]) -> Tensor:
        """What plain torch computes in the same data type, over the same cache without its holes."""
        keys, values = (view.nan_to_num() for view in keys_and_values(self.cache))
        out = self.out()
        run(self.query, keys, values, out)
        return out


def forms(num_heads: int) -> dict[str, tuple[BiasForm, Reference]]:
    """Every form, and the reference that says what it means."""
    steps = torch.arange(1, num_heads + 1) / num_heads
    slopes, rates = [float(x) for x in 0.5 * steps], [float(x) for x in 0.4 + 0.8 * steps]
    table = torch.randn(9, num_heads, generator=torch.Generator().manual_seed(1))
    return {
        "flat": (Flat(num_heads), no_position_attention),
        "linear": (Linear(torch.tensor(slopes)), lambda *x: alibi_attention(*x, slopes)),
        "power": (
            Power(torch.tensor(slopes), torch.tensor(rates)),
            lambda *x: kerple_power_attention(*x, slopes, rates),
        ),
        "log": (Log(torch.tensor(slopes), torch.tensor(rates)), lambda *x: kerple_log_attention(*x, slopes, rates)),
        "table": (
            T5(relative_attention_bias=table, relative_attention_max_distance=40).form(),
            lambda *x: t5_attention(*x, table.double(), 40),
        ),
    }


def error(found: Tensor, expected: Tensor) -> float:
    """Root mean square; the largest of a few hundred roundings would be a matter of luck."""
    return float((found[: len(expected)].double() - expected).square().mean().sqrt())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
@pytest.mark.parametrize("name", forms(1))
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_with_a_bias_is_as_exact_as_torch(shape: Shape, name: str, dtype: torch.dtype) -> None:
    batch = Batch(shape, dtype)
    form, reference = forms(shape.num_heads)[name]
    expected = batch.expected(reference)
    out = batch.out()
    bias = attention.TabledBias(form, max(total for total, _ in shape.requests))
    attention.bias_attention(batch.query, batch.cache, batch.paged(), bias, shape.scale, out)
    plain = batch.in_torch(
        lambda query, keys, values, to: attention_reference.bias_attention(
            query, keys, values, batch.paged(), form, shape.scale, to
        )
    )
    assert error(out, expected) <= ATTENTION_TIMES_TORCH * error(plain, expected)
    assert out[len(expected) :].isnan().all(), "padding was written"


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
@pytest.mark.parametrize(
    ("npos", "reference", "listing"),
    [
        pytest.param(64, cope_attention_of_the_listing, True, id="64 positions, the paper's listing"),
        pytest.param(17, cope_attention_of_the_repository, False, id="17 positions, the authors' repository"),
        pytest.param(2, cope_attention_of_the_repository, False, id="2 positions"),
        pytest.param(600, cope_attention_of_the_listing, True, id="600 positions, hardly ever reached"),
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_contextual_positions_are_as_exact_as_torch(
    shape: Shape, npos: int, reference: Callable[..., Tensor], listing: bool, dtype: torch.dtype
) -> None:
    batch = Batch(shape, dtype)
    # neighbouring positions differ little, as they do once they are trained: noise would measure that of positions
    steps = torch.randn(shape.head_dim, npos, generator=torch.Generator().manual_seed(2)) * 0.2
    pos_emb = (steps.cumsum(1) / math.sqrt(npos)).to(dtype).float()
    expected = batch.expected(lambda *x: reference(*x, pos_emb.T.double()))
    cope = Cope(pos_emb, 1.0 if listing else shape.scale)
    out = batch.out()
    table = attention.TabledCope(cope.pos_emb, cope.qe_scale)
    attention.cope_attention(batch.query, batch.cache, batch.paged(), table, shape.scale, out)
    plain = batch.in_torch(
        lambda query, keys, values, to: attention_reference.cope_attention(
            query, keys, values, batch.paged(), cope, shape.scale, to
        )
    )
    assert error(out, expected) <= ATTENTION_TIMES_TORCH * error(plain, expected)
    assert out[len(expected) :].isnan().all(), "padding was written"


def test_the_table_of_a_model_in_16_bits_is_read_as_it_is() -> None:
    shape = Shape(((300, 1), (70, 5)), 6, 3, 16, 128)
    batch, pos_emb = Batch(shape), torch.randn(shape.head_dim, 64, generator=torch.Generator().manual_seed(2))
    found = []
    for model_dtype in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(model_dtype)  # as vLLM does while it loads weights
        try:
            table = attention.TabledCope(pos_emb, 1.0)
        finally:
            torch.set_default_dtype(torch.float32)
        found.append(batch.out())
        attention.cope_attention(batch.query, batch.cache, batch.paged(), table, shape.scale, found[-1])
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("worst", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_in_one_request_reaches_no_other(worst: float) -> None:
    shape = Shape(((300, 1), (70, 5)), 6, 3, 16, 128)
    batch = Batch(shape)
    table = attention.TabledCope(torch.randn(shape.head_dim, 64), 1.0)
    expected, out = batch.out(), batch.out()
    attention.cope_attention(batch.query, batch.cache, batch.paged(), table, shape.scale, expected)
    batch.query[0] = worst
    attention.cope_attention(batch.query, batch.cache, batch.paged(), table, shape.scale, out)
    assert out[0].isnan().any()
    assert torch.equal(out[1:6], expected[1:6])


@pytest.mark.parametrize("length", [33, 65, 2049], ids=["second-tile", "third-tile", "cut-in-parts"])
@pytest.mark.parametrize("tolerance", [None, 1e-3], ids=["dense", "windowed"])
@pytest.mark.parametrize("place", [0, -1], ids=["far", "own"])
def test_an_answer_does_not_leave_out_a_key_that_is_not_a_number(
    place: int, tolerance: float | None, length: int
) -> None:
    shape = Shape(((length, 1), (70, 1)), 2, 1, 16, 32)
    batch = Batch(shape)
    bias = attention.TabledBias(Linear(torch.full((2,), 0.1)), length)
    batch.keys[0][place] = math.nan
    for row, keys, values in zip(batch.table, batch.keys, batch.values, strict=True):
        attention.store(keys, values, batch.cache, batch.slots(row, len(keys)), batch.key_norms)
    window = None if tolerance is None else Window(batch.key_norms, tolerance, torch.zeros(2, dtype=torch.int64))
    out = batch.out()
    attention.bias_attention(batch.query, batch.cache, batch.paged(), bias, shape.scale, out, window)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


def test_keys_at_the_last_position_are_counted() -> None:
    shape = Shape(((300, 1), (1025, 1), (2100, 1)), 6, 3, 16, 128)
    together, counts = Batch(shape), torch.zeros(2, dtype=torch.int64)
    table = attention.TabledCope(torch.randn(shape.head_dim, 64), 1.0)
    attention.cope_attention(
        together.query, together.cache, together.paged(), table, shape.scale, together.out(), counts
    )
    of_requests = [
        walked(query, keys, shape.scale, 64, 1) for query, keys in zip(together.queries, together.keys, strict=True)
    ]
    num_keys, saturated, walks = (sum(numbers) for numbers in zip(*of_requests, strict=True))
    assert counts.sum() == num_keys
    # A walk learns after a tile of 32 keys that all of its rows are saturated.
    assert saturated - 32 * walks < counts[1] <= saturated


@pytest.mark.parametrize("shape", SHAPES)
def test_a_request_gets_the_same_bits_whatever_it_is_served_with(shape: Shape) -> None:
    together = Batch(shape)
    bias = attention.TabledBias(forms(shape.num_heads)["linear"][0], 4096)
    table = attention.TabledCope(torch.randn(shape.head_dim, 8), 1.0)
    counts = torch.zeros(2, dtype=torch.int64)
    window = Window(together.key_norms, 1e-3, counts)
    all_biased, all_walked = together.out(), together.out()
    attention.bias_attention(together.query, together.cache, together.paged(), bias, shape.scale, all_biased, window)
    attention.cope_attention(together.query, together.cache, together.paged(), table, shape.scale, all_walked)
    begins = together.paged().query_start_loc.tolist()
    for request, (total, own) in enumerate(shape.requests):
        rows = slice(begins[request], begins[request + 1])
        alone = PagedBatch(
            together.table[request : request + 1],
            torch.tensor([0, own], dtype=torch.int32),
            torch.tensor([total], dtype=torch.int32),
            own,
            total,
        )
        biased, walked = torch.empty_like(together.query[rows]), torch.empty_like(together.query[rows])
        attention.bias_attention(together.query[rows], together.cache, alone, bias, shape.scale, biased, window)
        attention.cope_attention(together.query[rows], together.cache, alone, table, shape.scale, walked)
        assert torch.equal(biased, all_biased[rows]) and torch.equal(walked, all_walked[rows])


@pytest.mark.parametrize("block_size", [96, 128, 256])
def test_a_query_gets_the_same_bits_in_whatever_part_of_its_prompt_it_comes(block_size: int) -> None:
    shape, last = Shape(((700, 700),), 4, 2, 32, block_size), 333
    whole = Batch(shape)
    bias = attention.TabledBias(forms(shape.num_heads)["linear"][0], 4096)
    table = attention.TabledCope(torch.randn(shape.head_dim, 64, generator=torch.Generator().manual_seed(2)), 1.0)
    part = PagedBatch(
        whole.table, torch.tensor([0, last], dtype=torch.int32), torch.tensor([700], dtype=torch.int32), last, 700
    )
    for run in (
        lambda query, batch, out: attention.bias_attention(query, whole.cache, batch, bias, shape.scale, out),
        lambda query, batch, out: attention.cope_attention(query, whole.cache, batch, table, shape.scale, out),
    ):
        of_whole, of_part = whole.out(), torch.empty(last, shape.num_heads, shape.head_dim)
        run(whole.query, whole.paged(), of_whole)
        run(whole.queries[0][-last:], part, of_part)
        assert torch.equal(of_part, of_whole[700 - last : 700])


@pytest.mark.parametrize("name", ["linear", "power", "log"])
@pytest.mark.parametrize("size", [0.3, 1.0, 3.0], ids=["small logits", "usual logits", "large logits"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_window_reads_what_its_bound_asks_for_and_changes_less_than_it_promises(
    shape: Shape, size: float, name: str
) -> None:
    batch, tolerance = Batch(shape, size=size), 1e-2
    form = forms(shape.num_heads)[name][0]
    bias = attention.TabledBias(form, 4096)
    dense, windowed, counts = batch.out(), batch.out(), torch.zeros(2, dtype=torch.int64)
    window = Window(batch.key_norms, tolerance, counts)
    attention.bias_attention(batch.query, batch.cache, batch.paged(), bias, shape.scale, dense)
    attention.bias_attention(batch.query, batch.cache, batch.paged(), bias, shape.scale, windowed, window)
    num_tokens = sum(own for _, own in shape.requests)
    largest = max(float(values.abs().max()) for values in batch.values)
    assert (windowed - dense)[:num_tokens].abs().max() <= 2 * tolerance * largest
    # A tile's own norm bounds its keys at least as well as the request's largest, so no block is read without need.
    keys, _ = keys_and_values(batch.cache)
    first = first_keys(batch.query, keys, batch.paged(), form, shape.scale, window)
    assert int(counts[0]) <= blocks_from(first, batch)
    assert int(counts.sum()) == blocks_from(torch.zeros_like(first), batch)


def blocks_from(first: Tensor, batch: Batch) -> int:
    """Blocks that tasks read whose rows begin to read at ``first``, ``[num_tokens, num_heads]``."""
    shape, total_blocks, row = batch.shape, 0, 0
    group = shape.num_heads // shape.num_kv_heads
    together = max(1, 32 // group)
    for total, own in shape.requests:
        for begin in range(0, own, together):
            end = min(own, begin + together)
            newest = total - own + end
            edges = [0, newest] if own > together else [*range(0, newest, 1024), newest]
            for head in range(shape.num_kv_heads):
                earliest = int(first[row + begin : row + end, head * group : (head + 1) * group].min())
                for low, high in itertools.pairwise(edges):
                    begins = max(low, earliest)
                    if begins < high:
                        total_blocks += (high - 1) // shape.block_size - begins // shape.block_size + 1
        row += own
    return total_blocks


@pytest.mark.parametrize("shape", SHAPES)
def test_keys_and_values_lie_where_the_layout_says_and_norms_are_running_maxima(shape: Shape) -> None:
    batch = Batch(shape)
    cached_keys, cached_values = keys_and_values(batch.cache)
    norms = torch.zeros_like(batch.key_norms)
    for row, keys, values in zip(batch.table, batch.keys, batch.values, strict=True):
        slots = batch.slots(row, len(keys))
        blocks, offsets = slots // shape.block_size, slots % shape.block_size
        assert torch.equal(cached_keys[blocks, :, offsets], keys)
        assert torch.equal(cached_values[blocks, :, offsets], values)
        record_key_norms(norms, keys, slots)
        torch.testing.assert_close(
            batch.key_norms[blocks, :, offsets], norms[blocks, :, offsets], rtol=SOME_FLOAT32_OPERATIONS, atol=0
        )


def test_tokens_without_a_slot_are_not_cached() -> None:
    cache = torch.zeros(2, 1, 32, 32)
    keys = values = torch.ones(3, 1, 16)
    attention.store(keys, values, cache, torch.tensor([-1, 40, -1]), None)
    assert int(cache.count_nonzero()) == 32
    assert torch.equal(keys_and_values(cache)[0][1, 0, 8], torch.ones(16))


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        pytest.param(torch.zeros(2, 1, 16, 32), "block_size must be a multiple of 32", id="blocks of 16"),
        pytest.param(torch.zeros(2, 1, 32, 40), "head_dim must be a multiple of 16", id="head_dim 20"),
        pytest.param(torch.zeros(2, 1, 32, 32, dtype=torch.float8_e4m3fn), "float32, bfloat16 and float16", id="fp8"),
        pytest.param(torch.zeros(2, 32, 2, 32).transpose(1, 2), "must be contiguous", id="tokens before heads"),
    ],
)
def test_caches_that_the_kernels_cannot_read_are_refused(cache: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention.store(torch.zeros(1, 1, 16), torch.zeros(1, 1, 16), cache, torch.zeros(1, dtype=torch.int64), None)


@pytest.mark.parametrize(
    "slots",
    [
        pytest.param(torch.zeros(1, dtype=torch.int32), id="int32"),
        pytest.param(torch.zeros(4, dtype=torch.int64)[::2], id="every other one"),
    ],
)
def test_slots_that_the_kernels_would_misread_are_refused(slots: Tensor) -> None:
    keys = torch.zeros(2, 1, 16)
    with pytest.raises(ValueError, match="slot_mapping must be int64 and contiguous"):
        attention.store(keys, keys, torch.zeros(2, 1, 32, 32), slots, None)
