"""Re-rotation of a request's cached keys in all layers, as a share of copy bandwidth."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_runtime.encodings.scaling.ntk import Ntk
from posenc_runtime.encodings.scaling.yarn import Yarn
from posenc_runtime.encodings.spec import Scaling
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary import reference
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange
from tests.benchmarks.gpu.checks import rotated_alike, same_bits
from tests.benchmarks.gpu.copying import copying
from tests.benchmarks.gpu.rows import at_least
from tests.benchmarks.gpu.sizes import Sizes
from tests.benchmarks.gpu.trial import COPY, Question, Rival, Stage, Timed, duration, share_of_copy

SUBJECT = "rerotate"
IN_PLACE, PARTLY, COPIED = "re-rotated in place", "re-rotated in place, YaRN", "re-rotated into copies"
EAGER = "re-rotated in place, launched by the host"


class Request:
    """A request's blocks in the caches of all layers, shuffled, and as many that are free.

    Attributes:
        caches: of each layer ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``, tokens before heads in memory.
    """

    def __init__(self, stage: Stage, num_tokens: int) -> None:
        self.model = model = stage.sizes.model
        self.num_tokens = num_tokens
        self._stage = stage
        num_blocks = model.blocks_of(num_tokens)
        shuffled = torch.randperm(2 * num_blocks, device=stage.device, generator=stage.generator())
        self._own, self._free = shuffled.split(num_blocks)
        self._first_positions = torch.arange(num_blocks, device=stage.device) * model.block_size
        self.layout = KeyLayout(model.block_size, model.head_dim, model.head_dim, is_neox_style=True)
        in_memory = (2 * num_blocks, model.block_size, model.num_kv_heads, 2 * model.head_dim)
        self.caches = [
            torch.empty(in_memory, dtype=model.dtype, device=stage.device).transpose(1, 2)
            for _ in range(model.num_layers)
        ]

    def moves(self, into_copies: bool) -> BlockMoves:
        return BlockMoves(self._own, self._free if into_copies else self._own, self._first_positions)

    def change(self, method: Scaling, ratio: float | None = None) -> ScaleChange:
        """From scale 1 to scale 2, with its phases where the caches are, as an engine keeps it.

        Args:
            ratio: of the attention factors, if it is not theirs.
        """
        change = ScaleChange.between(*(method.frequencies(self.model.rotary_spec(), scale) for scale in (1.0, 2.0)))
        if ratio is not None:
            change = ScaleChange(change.phases, ratio)
        return dataclasses.replace(change, phases=change.phases.to(self._stage.device))

    def fill(self, layer: int, cache: Tensor) -> None:
        """What the layer holds before anything is turned: the same each time."""
        cache.transpose(1, 2).normal_(generator=self._stage.generator(layer))


def rerotating(
    stage: Stage,
    request: Request,
    method: Scaling,
    ratio: float | None = None,
    into_copies: bool = False,
    from_host: bool = False,
) -> Rival:
    """
    Args:
        ratio: see ``Request.change``.
        from_host: it is not replayed from a graph, even if it could be.
    """
    moves, change = request.moves(into_copies), request.change(method, ratio)

    def call(_: int) -> None:
        ops.rerotate(request.caches, moves, change, request.layout)

    for layer, cache in enumerate(request.caches):
        request.fill(layer, cache)
    kernels = stage.note(lambda: call(0))
    head_dim = request.model.head_dim
    expected = torch.empty_like(request.caches[0])
    for layer, cache in enumerate(request.caches):
        request.fill(layer, expected)
        reference.rerotate([expected], moves, change, request.layout)
        rotated_alike(cache[..., :head_dim], expected[..., :head_dim])
        same_bits(cache[..., head_dim:], expected[..., head_dim:])
    tokens = request.num_tokens
    pairs = _pairs_in_place(change)
    moved = request.model.copied_bytes(tokens) if into_copies else request.model.rerotated_bytes(tokens, pairs)
    is_captured = not from_host and stage.clock.can_capture(lambda: call(0))
    remark = "" if is_captured or from_host else "launched by the host: it waits for the device, which no graph can"
    return Rival(call, moved=moved, is_captured=is_captured, kernels=kernels, remark=remark)


def _pairs_in_place(change: ScaleChange) -> int:
    """That are read and written: the first ones that do not change are left, by eights."""
    changed = change.is_changed()
    unchanged = int(changed.nonzero()[0]) if bool(changed.any()) else changed.numel()
    return changed.numel() - unchanged // 8 * 8


def trials(sizes: Sizes) -> list[Timed]:
    # Every pair but the first changes with NTK. YaRN leaves the fast pairs, where the factor on scores is the queries'.
    rivals = {
        COPY: copying,
        IN_PLACE: functools.partial(rerotating, method=Ntk()),
        EAGER: functools.partial(rerotating, method=Ntk(), from_host=True),
        PARTLY: functools.partial(rerotating, method=Yarn(), ratio=1.0),
        COPIED: functools.partial(rerotating, method=Ntk(), into_copies=True),
    }
    return [
        Timed(
            SUBJECT,
            f"re-rotation of {tokens:,} tokens",
            lambda stage, tokens=tokens: Request(stage, tokens),  # type: ignore[misc]
            rivals,
            _questions(sizes, tokens),
        )
        for tokens in sizes.rerotated
    ]


def _questions(sizes: Sizes, tokens: int) -> Sequence[Question]:
    where = f"{tokens:,} tokens, {sizes.model.num_layers} layers"
    found = [share_of_copy(f"{IN_PLACE}, {where}", IN_PLACE, at_least(0.75))]
    found.append(duration(f"{IN_PLACE}, {where}", IN_PLACE, "ms"))
    found.append(share_of_copy(f"{EAGER}, {where}", EAGER))
    found.append(share_of_copy(f"{PARTLY}, {where}", PARTLY))
    found.append(share_of_copy(f"{COPIED}, {where}", COPIED))
    return found
