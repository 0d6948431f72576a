"""The attentions that are compared, each over caches of its own layout, and what each has to compute."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from posenc_runtime.encodings.bias.alibi import Alibi
from posenc_runtime.kernels.attention.window import Window
from posenc_runtime.kernels.cpu import attention
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from tests.benchmarks.attention_step import Step
from tests.benchmarks.gates import moved_to
from tests.benchmarks.stock_attention import StockAttention
from tests.references.alibi import alibi_attention, alibi_slopes
from tests.references.cope import cope_attention_of_the_repository
from tests.references.no_position import no_position_attention

STOCK, STOCK_ALIBI = "vLLM", "vLLM, ALiBi"
BIAS, WINDOWED = "bias (ALiBi)", "bias, windowed"
TOLERANCE = AttentionChoice.window_tolerance
NPOS = 64

# (query, keys, values, scale) of one request, in float64.
Reference = Callable[[Tensor, Tensor, Tensor, float], Tensor]


@dataclasses.dataclass(frozen=True)
class Rival:
    """
    Attributes:
        attend: stores the step's keys and values in the cache of the layer of that number, and writes ``out``.
        query, out: ``[batch * queries, num_heads, head_dim]``.
        reference: what ``out`` should hold.
        tolerance: part of the weights that it may leave out.
        blocks: int64 ``[2]``, KV blocks read and skipped, where it counts them.
    """

    name: str
    attend: Callable[[int], None]
    query: Tensor
    out: Tensor
    reference: Reference
    tolerance: float = 0.0
    blocks: Tensor | None = None


def cope_name(gate: float) -> str:
    return f"CoPE, gates of {gate:g}"


def rivals(step: Step, num_layers: int, gates: Sequence[float]) -> list[Rival]:
    """All of them over the same step, vLLM's own first.

    Args:
        num_layers: caches in each of the two layouts.
        gates: of each CoPE the mean gate, above 0 and below 1.
    """
    slopes = Alibi(num_heads=step.layer.num_heads).slopes()
    stock = StockAttention(step)
    theirs = [step.empty_cache() for _ in range(num_layers)]
    ours = [step.empty_cache() for _ in range(num_layers)]
    norms = [torch.zeros(cache.shape[:3]) for cache in ours]
    for keys, values, slots in step.earlier():
        for layer in range(num_layers):
            stock.store(keys, values, theirs[layer], slots)
            attention.store(keys, values, ours[layer], slots, norms[layer])
    return [
        _stock(STOCK, step, stock, theirs, no_position_attention),
        _stock(STOCK_ALIBI, step, StockAttention(step, slopes), theirs, _alibi(step)),
        _bias(BIAS, step, ours),
        _bias(WINDOWED, step, ours, norms),
        *(_cope(step, ours, gate) for gate in gates),
    ]


def _alibi(step: Step) -> Reference:
    return functools.partial(alibi_attention, slopes=alibi_slopes(step.layer.num_heads))


def _stock(name: str, step: Step, stock: StockAttention, caches: list[Tensor], reference: Reference) -> Rival:
    query, (keys, values, slots) = step.query(), step.new()
    out = torch.empty_like(query)

    def attend(layer: int) -> None:
        stock.store(keys, values, caches[layer], slots)
        stock.attend(query, caches[layer], out)

    return Rival(name, attend, query, out, reference)


def _bias(name: str, step: Step, caches: list[Tensor], norms: list[Tensor] | None = None) -> Rival:
    bias = attention.TabledBias(Alibi(num_heads=step.layer.num_heads).form(), step.work.context)
    query, (keys, values, slots) = step.query(), step.new()
    out, blocks = torch.empty_like(query), torch.zeros(2, dtype=torch.int64)

    def attend(layer: int) -> None:
        attention.store(keys, values, caches[layer], slots, norms[layer] if norms else None)
        window = Window(norms[layer], TOLERANCE, blocks) if norms else None
        attention.bias_attention(query, caches[layer], step.paged, bias, step.layer.scale, out, window)

    if norms is None:
        return Rival(name, attend, query, out, _alibi(step))
    return Rival(name, attend, query, out, _alibi(step), TOLERANCE, blocks)


def _cope(step: Step, caches: list[Tensor], gate: float) -> Rival:
    scale, head_dim = step.layer.scale, step.layer.head_dim
    table = torch.randn(head_dim, NPOS, generator=torch.Generator().manual_seed(1))
    cope, counts = attention.TabledCope(table, scale), torch.zeros(2, dtype=torch.int64)
    query, (keys, values, slots) = step.query(moved_to(gate)), step.new()
    out = torch.empty_like(query)

    def attend(layer: int) -> None:
        attention.store(keys, values, caches[layer], slots, None)
        attention.cope_attention(query, caches[layer], step.paged, cope, scale, out, counts)

    reference = functools.partial(cope_attention_of_the_repository, table=table.double().T)
    return Rival(cope_name(gate), attend, query, out, reference)
