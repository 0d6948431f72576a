"""Batches for the attention kernels, by hand, and what must come out: dense attention in float64, from the papers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import BiasForm, Flat, Linear, Log, Power, Table
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.window import zero_norms
from tests.tolerance import ATTENTION_TIMES_TORCH, COPE_GATE_ROUNDING

UNTOUCHED = 7.0  # in outputs of padding


@dataclasses.dataclass(frozen=True)
class Case:
    """Requests of a step and what their layer is like.

    Attributes:
        requests: tokens and, of those, queries of each.
        padding: tokens after the last request's.
        tokens_first: whether caches are the transposed halves of one that holds keys and values, as vLLM's are.
        bias: a form's name, or "cope".
        npos: positions of CoPE.
        gates: added to what CoPE's gates are functions of.
        qe_scale: of CoPE.
        tolerance: of a window, if there is one.
        adversarial: whether what is near weighs nothing, and one key far back everything.
        last_key: by which each request's last key is multiplied.
    """

    requests: tuple[tuple[int, int], ...]
    num_heads: int = 2
    num_kv_heads: int = 1
    head_dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    padding: int = 0
    tokens_first: bool = False
    bias: str = "linear"
    npos: int = 8
    gates: float = 0.0
    qe_scale: float = 1.0
    tolerance: float | None = None
    adversarial: bool = False
    last_key: float = 1.0

    def tensors(self) -> Tensors:
        return Tensors(self)

    def batch(self) -> PagedBatch:
        blocks = [math.ceil(length / self.block_size) for length, _ in self.requests]
        table = torch.zeros(len(blocks), max(blocks) + 1, dtype=torch.int32)  # block 0 is nobody's, and not a number
        order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(5), dtype=torch.int32) + 1
        for row, own in zip(table, order.split(blocks), strict=True):
            row[: len(own)] = own
        queries = torch.tensor([0] + [own for _, own in self.requests], dtype=torch.int32)
        lengths = torch.tensor([length for length, _ in self.requests], dtype=torch.int32)
        return PagedBatch(table, queries.cumsum(0, dtype=torch.int32), lengths, int(queries.max()), int(lengths.max()))

    def form(self) -> BiasForm:
        slope, shape, table = self.numbers()
        of_kind: dict[str, Callable[[], BiasForm]] = {
            "flat": lambda: Flat(self.num_heads),
            "linear": lambda: Linear(slope),
            "power": lambda: Power(slope, shape),
            "log": lambda: Log(slope, shape),
            "table": lambda: Table(table),
        }
        return of_kind[self.bias]()

    def numbers(self) -> tuple[Tensor, Tensor, Tensor]:
        """Slopes and exponents (or rates) of the heads, and a table that ends at distance 20."""
        steps = torch.arange(1, self.num_heads + 1) / self.num_heads
        slope = {"linear": 2 * steps, "power": 1.5 * steps, "log": 6 * steps}.get(self.bias, steps)
        if self.adversarial and self.bias == "linear":
            slope = 0.5 + 0 * steps
        table = torch.randn(self.num_heads, 21, generator=torch.Generator().manual_seed(6))
        shape = 0.4 + 0.8 * steps
        if self.bias == "log":  # of a small rate, 1 + rate * distance loses the digits that count
            slope[0], shape[0] = 2e5, 5e-6
        return slope, shape, table

    def scale(self) -> float:
        return self.head_dim**-0.5

    def cope(self) -> Cope:
        generator = torch.Generator().manual_seed(8)
        table = torch.randn(self.head_dim, self.npos, generator=generator) * 0.3
        return Cope(table.to(self.dtype), self.qe_scale)


class Tensors:
    """A case's tensors: whatever a kernel must not read is not a number.

    Attributes:
        query: ``[num_tokens, num_heads, head_dim]``.
        keys, values: of each request ``[seq_len, num_kv_heads, head_dim]``.
        key_cache, value_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``.
        key_norms: as ``Window`` has them; infinite where no key is.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(4)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        width = (case.num_kv_heads, case.head_dim)
        queries = [normal(own, case.num_heads, case.head_dim) for _, own in case.requests]
        keys = [normal(length, *width) for length, _ in case.requests]
        if case.gates:  # a direction that all queries share, and all keys have a part of
            for query, key in zip(queries, keys, strict=True):
                query[..., 0], key[..., 0] = 4.0, case.gates * math.sqrt(case.head_dim) / 4
        if case.adversarial:
            queries, keys = self._far_key(queries, keys)
        for key in keys:
            key[-1] *= case.last_key
        self.keys = [key.to(case.dtype) for key in keys]
        self.values = [normal(length, *width).to(case.dtype) for length, _ in case.requests]
        self.query = torch.cat((*queries, torch.full((case.padding, *queries[0].shape[1:]), math.nan))).to(case.dtype)
        self.out = torch.full_like(self.query, UNTOUCHED)
        self.key_cache, self.value_cache = self._caches()
        self.key_norms = zero_norms(self.key_cache.shape[:3], torch.device("cpu")).fill_(math.inf)
        for table, keys_of, values_of in zip(case.batch().block_table, self.keys, self.values, strict=True):
            for place in range(len(keys_of)):
                block, slot = int(table[place // case.block_size]), place % case.block_size
                self.key_cache[block, :, slot] = keys_of[place]
                self.value_cache[block, :, slot] = values_of[place]
                of_block = keys_of[place - slot : place + 1].float()
                self.key_norms[block, :, slot] = of_block.norm(dim=-1).amax(0)

    def _far_key(self, queries: list[Tensor], keys: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Every key points away from the queries, with a logit of -16, but one that is 60 before the last: it has 16.

        A window that forgets how low the logits near by are ends at a distance of 56 for a slope of a half.
        """
        size = 4 * self.case.head_dim**0.25
        for query, key in zip(queries, keys, strict=True):
            query[:], key[:] = query * 1e-3, key * 1e-3
            query[..., 0], key[..., 0] = size, -size
            if len(key) > 60:
                key[len(key) - 61, :, 0] = size
        return queries, keys

    def _caches(self) -> tuple[Tensor, Tensor]:
        case = self.case
        num_blocks = int(case.batch().block_table.max()) + 1
        if case.tokens_first:
            shape = (num_blocks, case.block_size, case.num_kv_heads, 2 * case.head_dim)
            both = torch.full(shape, math.nan, dtype=case.dtype).transpose(1, 2)
            return both[..., : case.head_dim], both[..., case.head_dim :]
        shape = (num_blocks, case.num_kv_heads, case.block_size, case.head_dim)
        return torch.full(shape, math.nan, dtype=case.dtype), torch.full(shape, math.nan, dtype=case.dtype)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """All rows of all requests ``[num_queries, num_heads, head_dim]``, computed in one data type, head by head."""
        case = self.case
        outputs, begin = [], 0
        for (length, own), keys, values in zip(case.requests, self.keys, self.values, strict=True):
            output = torch.empty(own, case.num_heads, case.head_dim, dtype=dtype)
            distance = torch.arange(length - own, length)[:, None] - torch.arange(length)[None, :]
            for head in range(case.num_heads):
                kv_head = head * case.num_kv_heads // case.num_heads
                q = self.query[begin : begin + own, head].to(dtype)
                content = q @ keys[:, kv_head].to(dtype).T * case.scale()
                added = self._cope(q, content, distance) if case.bias == "cope" else self._bias(head, distance)
                logits = (content + added.to(dtype)).masked_fill(distance < 0, -math.inf)
                output[:, head] = torch.softmax(logits, -1) @ values[:, kv_head].to(dtype)
            outputs.append(output)
            begin += own
        return torch.cat(outputs)

    def _bias(self, head: int, distance: Tensor) -> Tensor:
        slope, shape, table = (numbers[head].double() for numbers in self.case.numbers())
        d = distance.clamp(min=0).double()
        return {
            "flat": 0 * d,
            "linear": -slope * d,
            "power": -slope * d**shape,
            "log": -slope * torch.log(1 + shape * d),
            "table": table[distance.clamp(0, 20)],
        }[self.case.bias]

    def _cope(self, q: Tensor, content: Tensor, distance: Tensor) -> Tensor:
        """Positions are added up key by key, from each row's own back; in float32 at least, as the paper asks."""
        wide = content.to(torch.promote_types(content.dtype, torch.float32))
        z = self.case.qe_scale * q @ self.case.cope().pos_emb.to(q.dtype)
        added = torch.zeros_like(wide)
        position = torch.zeros_like(wide[:, 0])
        for key in reversed(range(wide.shape[1])):
            seen = torch.sigmoid(wide[:, key]) * (distance[:, key] >= 0)
            position = (position + seen).clamp(max=self.case.npos - 1)
            below, above = position.floor(), position.ceil()
            z_below, z_above = (z.gather(1, entry.long()[:, None])[:, 0] for entry in (below, above))
            added[:, key] = z_below * (1 - position + below) + z_above * (position - below)
        return added

    def _moved_by_rounded_gates(self) -> float:
        """What a logit, and with values of size 1 an output, changes by where positions add up gates in whole units."""
        case = self.case
        logits = case.qe_scale * self.query.nan_to_num().double() @ case.cope().pos_emb.double()
        newer = max(length for length, _ in case.requests)
        return COPE_GATE_ROUNDING * math.sqrt(newer) * float(logits.diff(dim=-1).square().mean().sqrt())

    def faults(self) -> list[str]:
        """What is wrong with the output, in words."""
        exact = self.dense(torch.float64)
        found = self.out[: len(exact)].double()
        band = torch.finfo(self.case.dtype).eps * exact.abs().max()
        plain = (self.dense(self.case.dtype).double() - exact).abs().max()
        allowed = ATTENTION_TIMES_TORCH * (plain + band)
        if self.case.tolerance is not None:
            allowed += 2 * self.case.tolerance * max(values.abs().max() for values in self.values)
        if self.case.bias == "cope":
            allowed += 2 * self._moved_by_rounded_gates()
        faults = []
        error = (found - exact).abs().max()
        if not error <= allowed:  # nor a NaN
            faults.append(f"wrong by {error:.2e} where {allowed:.2e} is allowed")
        if not (self.out[len(exact) :] == UNTOUCHED).all():
            faults.append("padding was written")
        return faults


def one_by_one(case: Case, batch: PagedBatch) -> Iterator[tuple[slice, PagedBatch]]:
    """Each request of a case's batch alone, and where in the queries its own are."""
    for request, (length, own) in enumerate(case.requests):
        begin = int(batch.query_start_loc[request])
        yield (
            slice(begin, begin + own),
            PagedBatch(
                batch.block_table[request : request + 1],
                torch.tensor([0, own], dtype=torch.int32),
                batch.seq_lens[request : request + 1],
                own,
                length,
            ),
        )


EVERY_KIND = ((1, 1), (53, 1), (37, 5), (16, 16))  # alone, decoded in chunks, after a prefix, a whole prompt

BIAS_CASES = {
    "flat": Case(EVERY_KIND, bias="flat"),
    "linear": Case(EVERY_KIND),
    "power": Case(EVERY_KIND, bias="power"),
    "log": Case(EVERY_KIND, bias="log"),
    "table": Case(EVERY_KIND, bias="table"),
    "twelve-heads": Case(((20, 1), (9, 3)), num_heads=12, num_kv_heads=12),
    "eight-heads-to-one": Case(((33, 1), (33, 7)), num_heads=16, num_kv_heads=2),
    "sixteen-heads-to-one": Case(((33, 1), (33, 4)), num_heads=16, head_dim=16),
    "three-heads-to-one": Case(((33, 1), (33, 6)), num_heads=6, num_kv_heads=2),
    "one-head-of-48": Case(((40, 1), (40, 9)), num_heads=1, head_dim=48),
    "heads-of-80": Case(((40, 1), (40, 9)), num_heads=1, head_dim=80, bias="log"),
    "heads-of-128-and-blocks-of-128": Case(((129, 1), (129, 2), (127, 1)), num_heads=1, head_dim=128, block_size=128),
    "around-a-block": Case(((15, 1), (16, 1), (17, 1), (15, 15), (16, 15), (17, 2))),
    "around-a-chunk": Case(((31, 1), (32, 1), (33, 1), (64, 1), (65, 1))),
    "more-keys-than-the-smallest-chunks-hold": Case(((200, 1), (129, 1)), num_heads=1),
    "around-a-tile-of-queries": Case(((16, 16), (17, 17), (15, 15)), num_heads=4, num_kv_heads=2),
    "one-token": Case(((1, 1),)),
    "padding": Case(((20, 1), (20, 4)), padding=5),
    "keys-and-values-in-one-cache": Case(EVERY_KIND, num_kv_heads=2, tokens_first=True),
    "bfloat16": Case(EVERY_KIND, dtype=torch.bfloat16, tokens_first=True),
    "float16": Case(((40, 1), (40, 9)), dtype=torch.float16, bias="table"),
    "window": Case(((53, 1), (16, 16), (150, 1), (100, 20)), num_kv_heads=2, tolerance=1e-3),
    "window-power": Case(((150, 1), (100, 3)), bias="power", tolerance=1e-2),
    "window-log": Case(((150, 1), (100, 3)), bias="log", tolerance=1e-2),
    "window-over-eight-heads-to-one": Case(((150, 1), (100, 3)), num_heads=8, tolerance=1e-3),
    "window-of-six-heads": Case(((70, 1), (40, 3)), num_heads=6, num_kv_heads=6, tolerance=1e-3),
    "window-over-three-heads-to-one": Case(((70, 1), (40, 3)), num_heads=6, num_kv_heads=2, tolerance=1e-3),
    "window-of-a-form-that-never-decays": Case(((40, 1), (40, 2)), bias="table", tolerance=1e-2),
    "window-bfloat16": Case(((150, 1), (100, 3)), dtype=torch.bfloat16, tokens_first=True, tolerance=1e-3),
    "window-of-a-large-last-key": Case(((150, 1), (100, 3)), tolerance=1e-3, last_key=6.0),
    "window-against-the-grain": Case(((106, 1), (106, 3)), tolerance=1e-3, adversarial=True),
}

COPE_CASES = {
    "mixed": Case(EVERY_KIND, bias="cope"),
    "table-of-two": Case(((40, 1), (40, 7)), bias="cope", npos=2),
    "table-longer-than-any-request": Case(((40, 1), (40, 7)), bias="cope", npos=65),
    "table-of-1025": Case(((20, 1), (20, 2)), num_heads=1, bias="cope", npos=1025),
    "gates-all-but-shut": Case(((90, 1), (90, 4)), bias="cope", gates=-4.0),
    "last-position-between-tiles": Case(((50, 2), (50, 20)), num_heads=1, bias="cope", npos=7, gates=-1.1),
    "gates-all-but-open": Case(((90, 1), (90, 20)), bias="cope", gates=4.0),
    "scaled-table": Case(((40, 1), (40, 7)), bias="cope", qe_scale=32**-0.5),
    "eight-heads-to-one": Case(((33, 1), (33, 7)), num_heads=8, bias="cope"),
    "three-heads-to-one": Case(((33, 1), (18, 6)), num_heads=6, num_kv_heads=2, bias="cope"),
    "heads-of-48": Case(((40, 1), (40, 9)), head_dim=48, bias="cope", tokens_first=True),
    "heads-of-80": Case(((40, 1), (40, 9)), num_heads=1, head_dim=80, bias="cope"),
    "around-a-block": Case(((15, 1), (16, 1), (17, 1), (15, 15), (16, 15), (17, 2)), bias="cope"),
    "around-a-chunk": Case(((32, 1), (33, 1), (65, 1)), bias="cope", gates=-2.0),
    "more-keys-than-the-smallest-chunks-hold": Case(((200, 1),), num_heads=1, bias="cope", gates=-3.0),
    "one-token": Case(((1, 1),), bias="cope"),
    "padding": Case(((20, 1), (20, 4)), padding=5, bias="cope"),
    "bfloat16": Case(((40, 1), (40, 9)), dtype=torch.bfloat16, bias="cope"),
    "float16": Case(((40, 1), (40, 9)), dtype=torch.float16, bias="cope"),
}
