"""Attention with contextual positions, beside the same kernels without positions, and beside eager torch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import Flat
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention import reference as attention_reference
from posenc_runtime.kernels.attention.cope import Cope
from tests.benchmarks.gates import moved_to
from tests.benchmarks.gpu.eager_cope import eager_cope
from tests.benchmarks.gpu.paged_step import PagedStep
from tests.benchmarks.gpu.rows import Row, at_least, at_most
from tests.benchmarks.gpu.sizes import Sizes
from tests.benchmarks.gpu.trial import Rival, Stage, Timed, Trial, faster, slower
from tests.benchmarks.intervals import median_and_quartiles
from tests.tolerance import ATTENTION_ROW_EAGER_BFLOAT16

SUBJECT = "cope"
NOPE, EAGER = "our attention without positions", "eager torch"
DECODE_GATES = ((0.5, 1.15), (0.05, 1.15))  # mean gates, and at most so many times the time without positions
PREFILL_GATES = ((0.5, 1.15), (0.07, 1.5))
_EAGER_GATE, _EAGER_ROUNDS = 0.5, 5


def gated(gate: float) -> str:
    return f"CoPE, mean gate {gate:g}"


class CopeStep(PagedStep):
    """Its keys share a component, so that queries can set the mean gate."""

    def cope(self, npos: int) -> Cope:
        generator = torch.Generator(self.out.device).manual_seed(1)
        size = (self.model.head_dim, npos)
        table = torch.randn(size, dtype=self.model.dtype, device=self.out.device, generator=generator)
        return Cope(table * self.model.scale, 1.0)

    def gated_query(self, gate: float) -> Tensor:
        """Queries that make the mean of all gates about that."""
        return self.query(moved_to(gate))

    def mean_gate(self, query: Tensor) -> float:
        """Of the last query of the first request, over its heads and all keys."""
        keys, _ = in_order(self, 0)
        heads = query[self.batch.max_query_len - 1].float().unflatten(0, (self.model.num_kv_heads, -1))
        return float((torch.einsum("hgd,khd->hgk", heads, keys.float()) * self.model.scale).sigmoid().mean())

    def expected(self, query: Tensor, cope: Cope) -> Tensor:
        """Outputs over the first layer's cache."""
        out = torch.empty_like(self.out)
        keys, values = self.keys_and_values(0)
        attention_reference.cope_attention(query, keys, values, self.batch, cope, self.model.scale, out)
        return out


def contextual(stage: Stage, step: CopeStep, gate: float) -> Rival:
    query, cope = step.gated_query(gate), step.cope(stage.sizes.npos)

    def attend(layer: int) -> None:
        keys, values = step.keys_and_values(layer)
        ops.cope_attention(query, keys, values, step.batch, cope, step.model.scale, step.out)

    is_decode = step.batch.max_query_len == 1
    moved = step.decoded_bytes + step.model.score_bytes(step.context, len(step.batch)) if is_decode else None
    rival = step.rival(stage, attend, step.expected(query, cope), moved)
    return dataclasses.replace(rival, remark=f"mean gate {step.mean_gate(query):.3f}")


def without_positions(stage: Stage, step: CopeStep) -> Rival:
    query, form = step.query(), Flat(step.model.num_heads)

    def attend(layer: int) -> None:
        keys, values = step.keys_and_values(layer)
        ops.bias_attention(query, keys, values, step.batch, form, step.model.scale, step.out)

    expected = torch.empty_like(step.out)
    keys, values = step.keys_and_values(0)
    attention_reference.bias_attention(query, keys, values, step.batch, form, step.model.scale, expected)
    return step.rival(stage, attend, expected, step.decoded_bytes if step.batch.max_query_len == 1 else None)


def eager(stage: Stage, step: CopeStep) -> Rival:
    """Of one prompt whose keys and values are there already, in order."""
    query, cope = step.gated_query(_EAGER_GATE), step.cope(stage.sizes.npos)
    keys, values = in_order(step, 0)

    def attend(_: int) -> None:
        eager_cope(query, keys, values, cope.pos_emb, step.model.scale, step.out)

    rival = step.rival(stage, attend, step.expected(query, cope), allowed=ATTENTION_ROW_EAGER_BFLOAT16)
    return dataclasses.replace(rival, is_captured=False)


def in_order(step: PagedStep, request: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a request in the first layer ``[num_tokens, num_kv_heads, head_dim]``."""
    blocks = step.batch.block_table[request].long()
    keys, values = (
        part[blocks].transpose(1, 2).flatten(0, 1)[: step.context].contiguous() for part in step.keys_and_values(0)
    )
    return keys, values


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a prompt's attention allocates beyond its tensors, for twice the tokens over for as many."""

    subject: str
    tokens: int

    @property
    def name(self) -> str:
        return f"memory of CoPE, prefill of {2 * self.tokens:,} over {self.tokens:,} tokens"

    @property
    def rows(self) -> tuple[Row, ...]:
        quantity = "times the memory"
        return (
            Row(self.name, f"{quantity}, kernel", at_most(2.1)),
            Row(self.name, f"{quantity}, {EAGER}"),
        )

    def answer(self, stage: Stage) -> tuple[Row, ...]:
        once, twice = (self._allocated(stage, tokens) for tokens in (self.tokens, 2 * self.tokens))
        if stage.is_rehearsal:
            return tuple(row.skipped("torch counts what is allocated on CUDA only") for row in self.rows)
        return tuple(
            row.measured(
                median_and_quartiles([most / least]), remark=f"{least / 2**20:,.0f} MiB, then {most / 2**20:,.0f} MiB"
            )
            for row, least, most in zip(self.rows, once, twice, strict=True)
        )

    def _allocated(self, stage: Stage, tokens: int) -> tuple[int, int]:
        """Bytes, by the kernel and by eager torch."""
        step = CopeStep(stage, stage.sizes.model, tokens, kind="prefill", shares=True)
        query, cope = step.gated_query(_EAGER_GATE), step.cope(stage.sizes.npos)
        cached, plain = step.keys_and_values(0), in_order(step, 0)

        def by_kernel() -> None:
            ops.cope_attention(query, *cached, step.batch, cope, step.model.scale, step.out)

        def by_eager() -> None:
            eager_cope(query, *plain, cope.pos_emb, step.model.scale, step.out)

        return _peak(stage, by_kernel), _peak(stage, by_eager)


def _peak(stage: Stage, work: Callable[[], None]) -> int:
    """Bytes that are allocated at most while it runs, beyond those that were before."""
    work()  # what libraries set up once is not the call's
    if stage.is_rehearsal:
        return 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def trials(sizes: Sizes) -> list[Trial]:
    found: list[Trial] = [
        _beside_nope(
            f"CoPE of {sizes.npos} positions, decode of {batch} at {sizes.cope_context:,} tokens",
            functools.partial(_decoding, batch=batch),
            DECODE_GATES,
        )
        for batch in sizes.cope_batches
    ]
    prefill = f"CoPE of {sizes.npos} positions, prefill of {sizes.prefill:,} tokens"
    found.append(_beside_nope(prefill, _prefilling, PREFILL_GATES))
    ours = gated(_EAGER_GATE)
    found.append(
        Timed(
            SUBJECT,
            f"{prefill}, beside {EAGER}",
            _prefilling,
            {ours: functools.partial(contextual, gate=_EAGER_GATE), EAGER: eager},
            [faster(f"{prefill}, mean gate {_EAGER_GATE:g}", ours, EAGER, at_least(20))],
            most_rounds=_EAGER_ROUNDS,
        )
    )
    return [*found, Memory(SUBJECT, sizes.prefill)]


def _decoding(stage: Stage, batch: int) -> CopeStep:
    return CopeStep(stage, stage.sizes.model, stage.sizes.cope_context, batch, shares=True)


def _prefilling(stage: Stage) -> CopeStep:
    return CopeStep(stage, stage.sizes.model, stage.sizes.prefill, kind="prefill", shares=True)


def _beside_nope(name: str, setting: Callable[[Stage], CopeStep], gates: tuple[tuple[float, float], ...]) -> Timed:
    rivals: dict[str, Callable[[Stage, CopeStep], Rival]] = {NOPE: without_positions}
    rivals |= {gated(gate): functools.partial(contextual, gate=gate) for gate, _ in gates}
    questions = [slower(f"{name}, mean gate {gate:g}", gated(gate), NOPE, at_most(most)) for gate, most in gates]
    return Timed(SUBJECT, name, setting, rivals, questions)
