"""Attention with ALiBi: all keys beside vLLM's Triton attention, and with a window beside all keys.

Queries and keys are normal: scores have a spread of 1, and a window is as long as that lets it be.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from posenc_runtime.encodings.bias.alibi import Alibi
from posenc_runtime.encodings.distance import BiasForm, on_device
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention import reference as attention_reference
from posenc_runtime.kernels.attention.window import Window, zero_norms
from tests.benchmarks.gpu.copying import copying
from tests.benchmarks.gpu.paged_step import PagedStep
from tests.benchmarks.gpu.peers import UnifiedAttention
from tests.benchmarks.gpu.rows import at_least
from tests.benchmarks.gpu.sizes import Sizes
from tests.benchmarks.gpu.trial import COPY, Rival, Stage, Timed, faster, share_of_copy

SUBJECT = "bias"
DENSE, WINDOWED, STOCK = "dense bias", "windowed bias", "vLLM's unified_attention with ALiBi"
TOLERANCE = 1e-3  # part of the weights that a window may leave unread; a deployment's default


class AlibiStep(PagedStep):
    @functools.cached_property
    def form(self) -> BiasForm:
        return on_device(Alibi(num_heads=self.model.num_heads).form(), self.out.device)

    @functools.cached_property
    def expected(self) -> Tensor:
        """Outputs over the first layer's cache. A window leaves out far less than its bound, and none of it shows."""
        out = torch.empty_like(self.out)
        keys, values = self.keys_and_values(0)
        attention_reference.bias_attention(self.query(), keys, values, self.batch, self.form, self.model.scale, out)
        return out

    def key_norms(self, layer: int) -> Tensor:
        """Of every slot, recorded as if the blocks had been filled one after the other."""
        keys, _ = self.keys_and_values(layer)
        norms = zero_norms(keys.shape[:3], keys.device)
        in_order = keys.transpose(1, 2).flatten(0, 1)
        ops.record_key_norms(norms, in_order, torch.arange(len(in_order), device=keys.device))
        return norms


def dense(stage: Stage, step: AlibiStep) -> Rival:
    query = step.query()

    def attend(layer: int) -> None:
        keys, values = step.keys_and_values(layer)
        ops.bias_attention(query, keys, values, step.batch, step.form, step.model.scale, step.out)

    return step.rival(stage, attend, step.expected, step.decoded_bytes if step.batch.max_query_len == 1 else None)


def windowed(stage: Stage, step: AlibiStep) -> Rival:
    query, counts = step.query(), torch.zeros(2, dtype=torch.int64, device=stage.device)
    windows = [Window(step.key_norms(layer), TOLERANCE, counts) for layer in range(len(step.caches))]

    def attend(layer: int) -> None:
        keys, values = step.keys_and_values(layer)
        ops.bias_attention(query, keys, values, step.batch, step.form, step.model.scale, step.out, windows[layer])

    rival = step.rival(stage, attend, step.expected)
    read, skipped = counts.tolist()
    if not read:  # torch's reference reads everything and counts nothing
        return rival
    return dataclasses.replace(rival, remark=f"reads {read / (read + skipped):.1%} of the blocks")


def stock(stage: Stage, step: AlibiStep) -> Rival:
    query, slopes = step.query(), Alibi(num_heads=step.model.num_heads).slopes().to(stage.device)
    launch = UnifiedAttention(stage, step.model, slopes)
    return step.rival(stage, lambda layer: launch(query, step.caches[layer], step.batch, step.out), step.expected)


def trials(sizes: Sizes) -> list[Timed]:
    decode = f"dense ALiBi, decode of {sizes.dense_batch} at {sizes.dense:,} tokens"
    prefill = f"dense ALiBi, prefill of {sizes.prefill:,} tokens"
    found = [
        Timed(
            SUBJECT,
            decode,
            lambda stage: AlibiStep(stage, sizes.model, sizes.dense, sizes.dense_batch),
            {COPY: copying, DENSE: dense, STOCK: stock},
            [share_of_copy(decode, DENSE, at_least(0.7)), faster(decode, DENSE, STOCK, at_least(0.95))],
        ),
        Timed(
            SUBJECT,
            prefill,
            lambda stage: AlibiStep(stage, sizes.model, sizes.prefill, kind="prefill"),
            {DENSE: dense, STOCK: stock},
            [faster(prefill, DENSE, STOCK, at_least(0.95))],
        ),
    ]
    for batch in sizes.windowed_batches:
        for context, target in sizes.windowed:
            found.append(_windowed(sizes, context, batch, target))
    return found


def _windowed(sizes: Sizes, context: int, batch: int, target: float) -> Timed:
    name = f"windowed ALiBi, {sizes.model.num_heads} KV heads, decode of {batch} at {context:,} tokens"
    return Timed(
        SUBJECT,
        name,
        lambda stage: AlibiStep(stage, sizes.model.as_multi_head(), context, batch),
        {DENSE: dense, WINDOWED: windowed},
        [faster(name, WINDOWED, DENSE, at_least(target))],
    )
