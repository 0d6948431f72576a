"""Time of a layer's attention at read time on the CPU, over vLLM's: ``python -m tests.benchmarks.read_time``.

vLLM's attention and ours read the same cache, which vLLM's own operation has written.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch import Tensor

from posenc_runtime.encodings.far_pages import FarPages
from posenc_runtime.encodings.read_time.dual_chunk import DualChunk
from posenc_runtime.encodings.read_time.rerope import ReRope
from posenc_runtime.kernels.attention import read_time_reference
from posenc_runtime.kernels.attention.read_time import ReadTime
from posenc_runtime.kernels.cpu.layout import keys_and_values
from posenc_runtime.kernels.cpu.read_time import read_time_attention
from posenc_runtime.vllm_adapter.in_worker.cpu_key_order import order_of
from tests.benchmarks import record
from tests.benchmarks.attention_kernels import kernels_of
from tests.benchmarks.attention_rivals import STOCK, Rival
from tests.benchmarks.attention_step import Layer, Step, Work
from tests.benchmarks.attention_times import Timed, layers_of, measure, ratios_table, times_table
from tests.benchmarks.stock_attention import StockAttention, isa_of
from tests.references.no_position import no_position_attention
from tests.tolerance import ATTENTION_OUTPUT

_console = Console(soft_wrap=True)


@dataclasses.dataclass(frozen=True)
class Chunk(Work):
    """A part of a prompt.

    Attributes:
        new: its last tokens, which are computed; the others are cached already.
    """

    new: int = 1

    @property
    def name(self) -> str:
        return f"{self.context:,} tokens" if self.new == 1 else f"{self.new:,} after {self.context - self.new:,}"

    @property
    def queries(self) -> int:
        return self.new


def rules(trained: int, block_size: int) -> dict[str, FarPages]:
    return {
        "near keys alone": ReRope().pages(2**24, block_size),
        "ReRoPE, log n": ReRope().pages(trained, block_size),
        "leaky ReRoPE": ReRope(leak=16).pages(trained, block_size),
        "dual chunk": DualChunk().pages(trained, block_size),
    }


def rivals(step: Step, num_layers: int, trained: int) -> list[Rival]:
    """vLLM's attention, and ours by each rule, over the same caches.

    Raises:
        RuntimeError: when ours is not what the reference computes, or not vLLM's where no key is far.
    """
    layer, stock = step.layer, StockAttention(step)
    order = order_of(layer.num_kv_heads, layer.block_size, layer.head_dim, layer.dtype, isa_of(layer))
    assert order is not None, "posenc refuses such a layer here"
    caches = [step.empty_cache() for _ in range(num_layers)]
    keys, values, slots = step.keys.flatten(0, 1), step.values.flatten(0, 1), step.slots.flatten()
    for cache in caches:
        stock.store(keys, values, cache, slots)
    query = step.query()
    pairs = layer.head_dim // 2
    inv_freq = 10_000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)

    def rival(name: str, attend: Callable[[Tensor, Tensor], None]) -> Rival:
        out = torch.empty_like(query)
        return Rival(name, lambda at: attend(caches[at], out), query, out, no_position_attention)

    field = [rival(STOCK, lambda cache, out: stock.attend(query, cache, out))]
    for name, pages in rules(trained, layer.block_size).items():
        read_time = ReadTime.of(pages, inv_freq, is_neox_style=True)

        def attend(cache: Tensor, out: Tensor, read_time: ReadTime = read_time) -> None:
            views = keys_and_values(cache, order)
            read_time_attention(query, *views, step.paged, read_time, layer.scale, out, order=order)

        field.append(rival(name, attend))
        field[0].attend(0)
        field[-1].attend(0)
        _check(field[-1], field[0].out if pages.trained_length > step.work.context else None, step, read_time)
    return field


def _check(ours: Rival, stocks: Tensor | None, step: Step, read_time: ReadTime) -> None:
    expected = stocks
    last = slice(-min(len(ours.query), 8), None)
    if expected is None:
        paged, own = step.paged, len(ours.query[last])
        batch = dataclasses.replace(paged, query_start_loc=torch.tensor([0, own], dtype=torch.int32))
        expected = torch.empty_like(ours.out[last])
        keys, values = keys_and_values(step.empty_cache())
        block, place = step.slots.flatten() // step.layer.block_size, step.slots.flatten() % step.layer.block_size
        keys[block, :, place], values[block, :, place] = step.keys.flatten(0, 1), step.values.flatten(0, 1)
        read_time_reference.read_time_attention(
            ours.query[last], keys, values, batch, read_time, step.layer.scale, expected
        )
    difference = float((ours.out[last] - expected[last]).double().norm() / expected[last].double().norm())
    if not difference <= ATTENTION_OUTPUT[step.layer.dtype_name]:
        raise RuntimeError(f"{ours.name}, {step.work.name}: off by {difference:.1e}")


def main(
    context: Annotated[list[int] | None, typer.Option(min=256, help="Tokens while decoding.")] = None,
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 8,
    kv_heads: Annotated[int, typer.Option(min=1, help="Heads of keys and values.")] = 8,
    head_dim: Annotated[int, typer.Option(min=32, help="Width of a head.")] = 128,
    trained: Annotated[int, typer.Option(min=1024, help="Trained length.")] = 2048,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds a step.")] = 15,
    one_thread: Annotated[
        bool, typer.Option("--one-thread", help="One thread, by the time that it runs: for machines that are shared.")
    ] = False,
    out: Annotated[pathlib.Path | None, typer.Option(help="Write the result to OUT.json and OUT.md.")] = None,
) -> None:
    """Measure decoding one request, and 2,048 tokens of a prompt after 6,144 that are cached."""
    if one_thread:
        torch.set_num_threads(1)
    clock = time.thread_time if one_thread else time.perf_counter
    works = [Chunk("decode", tokens) for tokens in context or (4096, 16_384)]
    works.append(Chunk("prefill", 8192, new=2048))
    by_layer = []
    for dtype in (torch.float32, torch.bfloat16):
        layer, timed = Layer(dtype, heads, kv_heads, head_dim), []
        for work in works:
            num_layers = layers_of(layer, work)
            field = rivals(Step(layer, work), num_layers, trained)
            seconds = measure(field, num_layers, rounds=rounds, warm_ups=2, advance=lambda: None, clock=clock)
            timed.append(Timed(layer, work, num_layers, seconds, kernels=kernels_of(layer)))
        by_layer.append(timed)
    _report(by_layer, trained, out)


def _report(by_layer: Sequence[Sequence[Timed]], trained: int, out: pathlib.Path | None) -> None:
    tables = [table for timed in by_layer for table in (times_table(timed), ratios_table(timed))]
    threads = torch.get_num_threads()
    remark = (
        f"One layer of a model that was trained on {trained:,} tokens, {threads} thread{'s' if threads != 1 else ''}: "
        "decoding one request over so many tokens, and computing a part of a prompt after what is cached. Each "
        "attention was compared with a reference, or with vLLM's where no key is far, before it was timed."
    )
    for table in tables:
        _console.print(table.for_terminal())
    _console.print(remark, highlight=False)
    if out is None:
        return
    markdown = record.sections(tables, [remark])
    result = {"steps": [one.to_json() for timed in by_layer for one in timed], "remarks": [remark]}
    for file in record.write(out, result, record.Provenance.of_this_run("tests.benchmarks.read_time"), markdown):
        _console.print(f"wrote {file}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
