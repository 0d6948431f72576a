"""Rotation into the cache, beside the two launches that vLLM takes for it: its rotary embedding, and what caches keys.

A sample goes through layers that have projections and caches of their own, as a model's have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from posenc_runtime.encodings.scaling.yarn import Yarn
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary import rotary_store_reference
from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from posenc_runtime.kernels.rotary.rotary_step import RotaryStep
from tests.benchmarks.gpu.checks import rotated_alike, rotated_nearly, same_bits
from tests.benchmarks.gpu.copying import copying
from tests.benchmarks.gpu.peers import StockRotation, Store
from tests.benchmarks.gpu.rows import at_least
from tests.benchmarks.gpu.sizes import Sizes
from tests.benchmarks.gpu.trial import COPY, Rival, Stage, Timed, duration, faster, share_of_copy

SUBJECT = "rotary_store"
OURS = "rotary_store"
SCALES = (1.0, 2.0, 4.0, 8.0)  # that the deployment has; tokens are unscaled, so that vLLM's rotation is the same
STOCK: dict[str, Store] = {
    "vLLM's rotation and FlashAttention's store": "flash",
    "vLLM's rotation and Triton's store": "triton",
}
_PROMPT_LAYERS = 8
_BLOCKS_A_LONE_TOKEN = 4  # of a cache: lone tokens lie far apart


class Step:
    """The tokens of a step, and of each layer the projection that they come from and the cache that they go to.

    Attributes:
        projections: ``[num_tokens, sum of model.widths]``.
        caches: ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``, tokens before heads in memory.
    """

    def __init__(self, stage: Stage, kind: Literal["prompt", "lone"]) -> None:
        self.model = model = stage.sizes.model
        device, draw = stage.device, stage.generator()
        num_tokens = stage.sizes.prompt if kind == "prompt" else stage.sizes.lone
        self.num_layers = min(_PROMPT_LAYERS, model.num_layers) if kind == "prompt" else model.num_layers
        token = torch.arange(num_tokens, device=device)
        num_blocks = model.blocks_of(num_tokens) if kind == "prompt" else _BLOCKS_A_LONE_TOKEN * num_tokens
        blocks = torch.randperm(num_blocks, device=device, generator=draw)
        if kind == "prompt":
            self.positions = token
            self.slots = blocks[token // model.block_size] * model.block_size + token % model.block_size
        else:
            self.positions = torch.randint(model.trained_tokens, (num_tokens,), device=device, generator=draw)
            self.slots = blocks[:num_tokens] * model.block_size + self.positions % model.block_size
        block_scale = torch.zeros(num_blocks, dtype=torch.int32, device=device)
        frequencies = [Yarn().frequencies(model.rotary_spec(), scale) for scale in SCALES]
        self.scales = RotaryScales.of(frequencies, block_scale, model.block_size, is_neox_style=True)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=model.dtype, device=device, generator=draw)

        layers = range(self.num_layers)
        self.projections = [drawn(num_tokens, sum(model.widths)) for _ in layers]
        in_memory = (num_blocks, model.block_size, model.num_kv_heads, 2 * model.head_dim)
        self.caches = [drawn(*in_memory).transpose(1, 2) for _ in layers]
        # Rivals rotate in place, and the next one is checked when others have already run.
        self._first = self.projections[0].clone(), self.caches[0].clone()

    @property
    def num_tokens(self) -> int:
        return self.positions.numel()

    def heads(self, projection: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``[num_tokens, heads, head_dim]`` in a projection."""
        query, key, value = (
            part.unflatten(1, (-1, self.model.head_dim)) for part in projection.split(self.model.widths, dim=1)
        )
        return query, key, value

    @functools.cached_property
    def expected(self) -> tuple[Tensor, Tensor]:
        """Queries, and the whole cache, of the first layer."""
        projection, cache = self.copies()
        query, key, value = self.heads(projection)
        step = RotaryStep(query, key, value, cache, self.positions, self.slots, self.scales)
        rotary_store_reference.rotary_store(step)
        return query, cache

    def copies(self) -> tuple[Tensor, Tensor]:
        """Of the first layer's projection and cache as they were, for a check."""
        projection, cache = self._first
        return projection.clone(), cache.clone()


def ours(stage: Stage, step: Step) -> Rival:
    def rotate(projection: Tensor, cache: Tensor) -> None:
        ops.rotary_store(RotaryStep(*step.heads(projection), cache, step.positions, step.slots, step.scales))

    return _rival(stage, step, rotate, rotated_alike, step.model.rotary_store_bytes(step.num_tokens))


def stock(stage: Stage, step: Step, store: Store) -> Rival:
    launch = StockRotation(stage, step.model.trained_tokens, store)

    def rotate(projection: Tensor, cache: Tensor) -> None:
        launch(projection, cache, step.positions, step.slots)

    return _rival(stage, step, rotate, rotated_nearly, step.model.rotation_then_store_bytes(step.num_tokens))


def _rival(
    stage: Stage,
    step: Step,
    rotate: Callable[[Tensor, Tensor], None],
    alike: Callable[[Tensor, Tensor], None],
    moved: int,
) -> Rival:
    """
    Args:
        rotate: a projection's queries and keys in place, and caches keys and values.
        alike: refuses rotated numbers that are not as expected.
    """
    expected_query, expected_cache = step.expected
    projection, cache = step.copies()
    kernels = stage.note(lambda: rotate(projection, cache))
    alike(step.heads(projection)[0], expected_query)
    keys, values = cache.split(step.model.head_dim, dim=-1)
    expected_keys, expected_values = expected_cache.split(step.model.head_dim, dim=-1)
    alike(keys, expected_keys)
    same_bits(values, expected_values)
    return Rival(
        lambda layer: rotate(step.projections[layer], step.caches[layer]), step.num_layers, moved, kernels=kernels
    )


def trials(sizes: Sizes) -> list[Timed]:
    rivals = {OURS: ours} | {name: functools.partial(stock, store=store) for name, store in STOCK.items()}
    prompt, lone = f"rotary_store, {sizes.prompt:,} tokens", f"rotary_store, {sizes.lone:,} lone tokens"
    return [
        Timed(
            SUBJECT,
            prompt,
            lambda stage: Step(stage, "prompt"),
            {COPY: copying} | rivals,
            [
                share_of_copy(prompt, OURS, at_least(0.8)),
                *(faster(prompt, OURS, name, at_least(1.1)) for name in STOCK),
            ],
        ),
        Timed(
            SUBJECT,
            lone,
            lambda stage: Step(stage, "lone"),
            rivals,
            [
                duration(lone, OURS, "µs"),
                *(faster(lone, OURS, name, at_least(1.5)) for name in STOCK),
            ],
        ),
    ]
