"""Attention with positions at read time, past the trained length: beside vLLM's FlashAttention, and beside ours.

Those two turn no query and read the same cache, so they do what attention over so many keys costs in any case. Queries
and keys are normal, and a rotation leaves them so: they stand for ones that were rotated at their own positions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import Flat
from posenc_runtime.encodings.read_time.rerope import ReRope
from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention import read_time_reference
from posenc_runtime.kernels.attention import reference as attention_reference
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time import ReadTime
from tests.benchmarks.gpu.cope import NOPE
from tests.benchmarks.gpu.paged_step import PagedStep
from tests.benchmarks.gpu.peers import FlashAttention
from tests.benchmarks.gpu.rows import Target, at_most
from tests.benchmarks.gpu.sizes import Sizes
from tests.benchmarks.gpu.trial import Rival, Stage, Timed, slower

SUBJECT = "read_time"
REROPE, LEAKY, FLASH = "ReRoPE", "leaky ReRoPE", "vLLM's FlashAttention 3"
LAYER = "ReRoPE in a layer, after vLLM's launch"
DECODE_OVER_FLASH, PREFILL_OVER_FLASH, DECODE_OVER_OURS = 1.15, 1.5, 1.05
# With it, the oldest pages of a request of five times the trained length are bounded, and the others leak.
LEAK = 8.0
# Queries of a prompt from one that is compared with a reference to the next. The reference keeps all scores of a
# query, and tiles have 32 queries: a prime number comes to every place in them.
_APART = 127


class FarStep(PagedStep):
    """One request whose queries are all past the trained length.

    Args:
        past: tokens in the cache that have no queries in this step.
        new: that have. A lone one decodes.
    """

    def __init__(self, stage: Stage, past: int, new: int = 1) -> None:
        model = dataclasses.replace(stage.sizes.model, trained_tokens=stage.sizes.far_trained)
        super().__init__(stage, model, past + new, kind="decode" if new == 1 else "prefill", past=past)
        rows = torch.arange(0, new, _APART, device=stage.device)
        self.rows = rows if int(rows[-1]) == new - 1 else torch.cat((rows, rows.new_tensor([new - 1])))

    def read_time(self, leak: float | Literal["none"] = "none") -> ReadTime:
        """ReRoPE with its own defaults: a window of half the trained length, pages of an eighth."""
        pages = ReRope(leak=leak).pages(self.model.trained_tokens, self.model.block_size)
        inv_freq = Default().frequencies(self.model.rotary_spec(), 1.0).inv_freq
        return ReadTime.of(pages, inv_freq, is_neox_style=True, device=self.out.device)

    def near_batch(self) -> PagedBatch:
        """The request as vLLM's kernel is given it in a step of ours: with the step's own tokens alone. Decision 73."""
        new = torch.full_like(self.batch.seq_lens, self.batch.max_query_len)
        return dataclasses.replace(self.batch, seq_lens=new)

    def expected(self, read_time: ReadTime) -> Tensor:
        """Outputs of ``rows`` over the first layer's cache."""
        query, keys, values, out = self._compared()
        read_time_reference.read_time_attention(query, keys, values, self._alone(), read_time, self.model.scale, out)
        return out

    @functools.cached_property
    def expected_unturned(self) -> Tensor:
        """The same where no query is turned."""
        query, keys, values, out = self._compared()
        form = Flat(self.model.num_heads)
        attention_reference.bias_attention(query, keys, values, self._alone(), form, self.model.scale, out)
        return out

    def attended(self, stage: Stage, attend: Callable[[int], None], expected: Tensor) -> Rival:
        """See ``PagedStep.rival``. A prompt computes for longer than it reads, so its bytes bound nothing."""
        moved = self.decoded_bytes if self.batch.max_query_len == 1 else None
        return self.rival(stage, attend, expected, moved, rows=self.rows)

    def _compared(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries of ``rows``, the first layer's keys and values, and room for outputs."""
        query = self.query()[self.rows]
        return query, *self.keys_and_values(0), torch.empty_like(query)

    def _alone(self) -> PagedBatch:
        """Each of ``rows`` as the last query of a request of its own, in the same blocks."""
        number = len(self.rows)
        lengths = self.context - self.batch.max_query_len + self.rows + 1
        return PagedBatch(
            self.batch.block_table.expand(number, -1),
            torch.arange(number + 1, dtype=torch.int32, device=self.rows.device),
            lengths.to(torch.int32),
            1,
            self.context,
        )


def at_read_time(
    stage: Stage, step: FarStep, leak: float | Literal["none"] = "none", *, in_a_layer: bool = False
) -> Rival:
    """As engines launch it.

    Args:
        in_a_layer: whether vLLM's launch comes before, which a step of ours makes for all requests. What it writes of
            this one is overwritten.
    """
    query, read_time = step.query(), step.read_time(leak)
    vllms = FlashAttention(stage, step.model, step.near_batch(), is_scheduled=False) if in_a_layer else None

    def attend(layer: int) -> None:
        if vllms is not None:
            vllms(query, step.caches[layer], step.out)
        keys, values = step.keys_and_values(layer)
        ops.read_time_attention(query, keys, values, step.batch, read_time, step.model.scale, step.out, only_far=True)

    return step.attended(stage, attend, step.expected(read_time))


def without_positions(stage: Stage, step: FarStep) -> Rival:
    query, form = step.query(), Flat(step.model.num_heads)

    def attend(layer: int) -> None:
        keys, values = step.keys_and_values(layer)
        ops.bias_attention(query, keys, values, step.batch, form, step.model.scale, step.out)

    return step.attended(stage, attend, step.expected_unturned)


def flash(stage: Stage, step: FarStep) -> Rival:
    query, launch = step.query(), FlashAttention(stage, step.model, step.batch)

    def attend(layer: int) -> None:
        launch(query, step.caches[layer], step.out)

    attend(0)  # layers share a schedule, so what is checked is not its first use
    return step.attended(stage, attend, step.expected_unturned)


def trials(sizes: Sizes) -> list[Timed]:
    trained = sizes.far_trained
    found = [
        _timed(
            f"ReRoPE, decode of 1 at {past:,} tokens past {trained:,}",
            # its query is the last of so many tokens past
            lambda stage, past=past: FarStep(stage, trained + past - 1),  # type: ignore[misc]
            at_most(DECODE_OVER_FLASH),
            at_most(DECODE_OVER_OURS),
        )
        for past in sizes.far_past
    ]
    prefill = f"ReRoPE, prefill of {sizes.prefill:,} tokens after {trained:,}"
    setting = functools.partial(FarStep, past=trained, new=sizes.prefill)
    return [*found, _timed(prefill, setting, at_most(PREFILL_OVER_FLASH), None)]


def _timed(name: str, setting: Callable[[Stage], FarStep], over_flash: Target, over_ours: Target | None) -> Timed:
    """Those that are compared follow each other in a round."""
    rivals: dict[str, Callable[[Stage, FarStep], Rival]] = {
        LEAKY: functools.partial(at_read_time, leak=LEAK),
        NOPE: without_positions,
        REROPE: at_read_time,
        FLASH: flash,
        LAYER: functools.partial(at_read_time, in_a_layer=True),
    }
    questions = [
        slower(name, REROPE, FLASH, over_flash),
        slower(f"{name}, after vLLM's launch", LAYER, FLASH),
        slower(name, REROPE, NOPE, over_ours),
        slower(f"leaky {name}", LEAKY, NOPE, over_ours),
    ]
    return Timed(SUBJECT, name, setting, rivals, questions)
