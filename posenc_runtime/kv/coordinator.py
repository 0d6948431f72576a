"""The scheduler's half: from requests and blocks to the plan of a step. Knows no engine."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any

from posenc_runtime.kv.admission import Admission, admit
from posenc_runtime.kv.counts import TOTAL, Counts
from posenc_runtime.kv.crossing import BlockMove, Crossing, CrossingQueue, Rotation
from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.kv.ledger import NULL_BLOCK, BlockLedger, MixedRotations
from posenc_runtime.kv.regime import private, regime


@dataclasses.dataclass(kw_only=True)
class StepPlan:
    """What the workers must do before a forward, the rotations first and in their order.

    Attributes:
        rotations: cached keys to turn from one scale to another.
        block_scales: scale index to the physical blocks that are to carry it from this step on.
    """

    rotations: list[Rotation] = dataclasses.field(default_factory=list)
    block_scales: dict[int, list[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True)
class _Running:
    """A request.

    Attributes:
        admission: what was decided when it came, and is not changed by anything since.
        first_index: scale of its first token. A preempted request begins again there; a recomputed one at another.
        scale_index: scale that its blocks carry now.
        num_reused_tokens: tokens of its prompt whose keys are copies from another scale. Behind those, if any, that the
            prefix cache had at its own.
        crossings: what its response says, each crossing once, however often it is replayed.
        reused: the copies of a prefix of another scale that it begins with, once all of them are made.
    """

    admission: Admission
    num_prompt_tokens: int
    first_index: int
    scale_index: int
    num_output_tokens: int = 0
    num_reused_tokens: int = 0
    prefill_counted: bool = False
    crossings: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    reused: Crossing | None = None


class ScaleCoordinator:
    """Decides scales and keeps the books: one object per engine, driven by its scheduler.

    With ``rerotate`` the scale at which a token is computed depends on its position and on the request's first
    scale alone: the first scale up to that scale's length, then the next. So a request that lost its blocks can
    replay its own history, and its answer does not depend on what else the server is doing.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.budget_tokens = deployment.rerotate_budget_tokens  # None until the workers have said what it is
        self._scale_set = deployment.scale_set
        self._requests: dict[str, _Running] = {}
        self._ledger = BlockLedger()
        self._crossing = CrossingQueue()
        self._counts = Counts()
        self._rotations: list[Rotation] = []
        self._assigned: dict[int, int] = {}
        self._levels: dict[str, int] = {}
        self._num_private = 0

    def admit(
        self, request_id: str, *, num_prompt_tokens: int, max_tokens: int | None, on_crossing: str | None = None
    ) -> str | None:
        """Choose a request's scale. Returns the regime whose cached keys it may read, None for the unscaled one.

        Raises:
            ValueError: when the prompt alone exceeds ``max_model_len``, or ``on_crossing`` is not to be had.
        """
        admission = admit(
            self.deployment, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens, on_crossing=on_crossing
        )
        self._requests[request_id] = _Running(
            admission=admission,
            num_prompt_tokens=num_prompt_tokens,
            first_index=admission.scale_index,
            scale_index=admission.scale_index,
        )
        self._counts.requests[self._label(admission.scale_index)] += 1
        return regime(self.deployment, admission.scale_index)

    def allocated(self, request_id: str, block_ids: Sequence[int]) -> None:
        """A request got fresh blocks, which it will fill."""
        scale_index = self._requests[request_id].scale_index
        self._ledger.write(request_id, block_ids, scale_index)
        self._assigned.update((block_id, scale_index) for block_id in block_ids if block_id != NULL_BLOCK)

    def hit(self, request_id: str, block_ids: Sequence[int]) -> None:
        """A request got blocks from the prefix cache. Those of a step come after all that was allocated in it.

        Raises:
            MixedRotations: when a block carries another scale than the request's.
        """
        self._ledger.read(request_id, block_ids, self._requests[request_id].scale_index)

    def prefilling(self, request_id: str, *, num_hit_tokens: int) -> None:
        """A request was scheduled for the first time, with so many tokens from the prefix cache, at whatever scale."""
        running = self._requests[request_id]
        if running.prefill_counted:
            return
        running.prefill_counted = True
        self._counts.prompt_tokens[self._label(running.first_index)] += running.num_prompt_tokens
        num_exact = num_hit_tokens - running.num_reused_tokens
        if num_exact:
            self._counts.prefix_hit_tokens[self._label(running.first_index)] += num_exact
        if running.reused:
            label = f"{self._label(running.reused.from_index)} {self._label(running.reused.to_index)}"
            self._counts.prefix_reused_tokens[label] += running.reused.num_tokens

    def generated(self, request_id: str, num_output_tokens: int) -> None:
        """A request has so many output tokens by now."""
        running = self._requests[request_id]
        for number in range(running.num_output_tokens, num_output_tokens):
            index = self._scale_of(running, running.num_prompt_tokens + number)
            self._counts.generation_tokens[self._label(index)] += 1
        running.num_output_tokens = max(running.num_output_tokens, num_output_tokens)

    def on_crossing(self, request_id: str) -> OnCrossing:
        """What happens when a request outgrows its scale."""
        return self._requests[request_id].admission.on_crossing

    def first_length(self, request_id: str) -> int:
        """Tokens that a request computes at its first scale, at most: only these can be in the prefix cache."""
        return self._scale_set.lengths[self._requests[request_id].first_index]

    def in_first_regime(self, request_id: str) -> bool:
        """Whether what a request has computed so far is what anybody else would have computed at its first scale."""
        running = self._requests[request_id]
        if running.num_reused_tokens or request_id in self._crossing:
            return False
        return running.scale_index == running.first_index

    def due(self, request_id: str, num_computed_tokens: int) -> int | None:
        """Index of the scale that a request must cross to before its next token; None when it may go on."""
        running = self._requests[request_id]
        if request_id in self._crossing or num_computed_tokens < self._scale_set.lengths[running.scale_index]:
            return None
        return self._scale_set.for_length(num_computed_tokens + 1)

    def allowance(self, request_id: str, num_computed_tokens: int, num_new_tokens: int) -> int:
        """How many of the tokens that are next a request may compute before it has to cross, or while it crosses."""
        if request_id in self._crossing:
            return 0
        length = self._scale_set.lengths[self._requests[request_id].scale_index]
        return max(min(num_new_tokens, length - num_computed_tokens), 0)

    def rerotate(self, request_id: str, to_index: int, moves: Sequence[BlockMove], *, num_tokens: int) -> str:
        """Begin to turn a request's cached keys; it must not run until ``advance`` names it.

        Args:
            moves: one for every block with keys of the request.
            num_tokens: tokens computed so far.

        Returns:
            The regime of what the request computes from now on. It is the request's own: its values and deeper keys
            were computed at older scales, so nobody else may read them.
        """
        self._crossing.begin(
            Crossing(
                request_id=request_id,
                from_index=self._requests[request_id].scale_index,
                to_index=to_index,
                num_tokens=num_tokens,
                waiting=deque(moves),
            )
        )
        return self._private_regime(to_index)

    def reuse(self, request_id: str, from_index: int, moves: Sequence[BlockMove], *, num_tokens: int) -> str:
        """Begin to copy a prefix that is cached at another scale; the request must not run until ``advance`` names it.

        Args:
            from_index: scale of the cached prefix.
            moves: one for every block of it.
            num_tokens: length of what is copied.

        Returns:
            The request's own regime from now on: what it reads is an approximation, and nobody else's business.
        """
        running = self._requests[request_id]
        running.num_reused_tokens = num_tokens
        self._crossing.begin(
            Crossing(
                request_id=request_id,
                from_index=from_index,
                to_index=running.scale_index,
                num_tokens=num_tokens,
                waiting=deque(moves),
                reuses_prefix=True,
            )
        )
        return self._private_regime(running.scale_index)

    def recompute(self, request_id: str, to_index: int, *, num_tokens: int) -> str | None:
        """A request begins again from its first token, at another scale. Returns its regime from now on."""
        running = self._requests[request_id]
        self._record(running, running.scale_index, to_index, num_tokens, "recompute")
        running.first_index = running.scale_index = to_index
        running.num_reused_tokens = 0
        self._ledger.release(request_id)
        return regime(self.deployment, to_index)

    def advance(self) -> tuple[list[int], list[str]]:
        """Put the next step's share of the crossings into the plan; call once for each step.

        Returns:
            Blocks whose copies are in the plan, to be given back once the step is planned, and requests that are
            whole again and may run in this step.
        """
        rotations, completed = self._crossing.advance(self.budget_tokens)
        sources = []
        for crossing, rotation in rotations:
            self._rotations.append(rotation)
            for move in rotation.moves:
                self._move(crossing, move)
                self._assigned[move.target] = rotation.to_index
                if move.source != move.target:
                    sources.append(move.source)
                    self._counts.copied_blocks[TOTAL] += 1
            self._requests[crossing.request_id].scale_index = rotation.to_index
            self._counts.rerotated_tokens[TOTAL] += sum(move.num_tokens for move in rotation.moves)
        for crossing in completed:
            running = self._requests[crossing.request_id]
            self._ledger.check(crossing.request_id, crossing.to_index)
            if crossing.reuses_prefix:
                running.reused = crossing
            else:
                self._record(running, crossing.from_index, crossing.to_index, crossing.num_tokens, "rerotate")
        return sources, [crossing.request_id for crossing in completed]

    def scheduled(self, request_id: str, num_computed_tokens: int, num_new_tokens: int) -> None:
        """A request runs in the step that is being planned.

        Raises:
            MixedRotations: when it would read keys of two scales, or write past the length of its own.
        """
        if self.allowance(request_id, num_computed_tokens, num_new_tokens) != num_new_tokens:
            state = "is crossing" if request_id in self._crossing else "has reached the length of its scale"
            raise MixedRotations(
                f"request {request_id} was scheduled for tokens {num_computed_tokens} to "
                f"{num_computed_tokens + num_new_tokens}, but {state}"
            )

    def preempted(self, request_id: str) -> tuple[str | None, list[int]]:
        """A request lost its blocks and will be computed again from its first token, at its first scale.

        Returns:
            Its regime from now on, and the sources of copies that were never made.
        """
        running = self._requests[request_id]
        running.scale_index = running.first_index
        running.num_reused_tokens = 0
        if not running.prefill_counted:
            running.reused = None
        self._ledger.release(request_id)
        return regime(self.deployment, running.first_index), self._crossing.drop(request_id)

    def abandoned(self, request_id: str) -> list[int]:
        """A request ended, maybe in the middle of a crossing. Returns the sources of copies that were never made."""
        return self._crossing.drop(request_id)

    def finished(self, request_id: str, *, num_output_tokens: int) -> dict[str, Any]:
        """A request ended, for whatever reason. Returns what its response says about it."""
        self.generated(request_id, num_output_tokens)
        self._ledger.release(request_id)
        said = self.said_so_far(request_id)
        del self._requests[request_id]
        return said

    def said_so_far(self, request_id: str) -> dict[str, Any]:
        """What the response of a request says, or would say if it ended now."""
        running = self._requests[request_id]
        # A request that was preempted and never resumed had come further than its blocks say.
        scale = running.crossings[-1]["to"] if running.crossings else self.deployment.scales[running.first_index]
        response = {
            "rope_type": self.deployment.rope_type,
            "scale": scale,
            "admission_tokens": running.admission.admission_tokens,
            "crossings": list(running.crossings),  # as of now: it may be sent after the next one
        }
        if (reused := running.reused) and running.prefill_counted:  # else nothing of its answer has read them
            scales = self.deployment.scales
            response["prefixes_reused"] = [
                {"tokens": reused.num_tokens, "from": scales[reused.from_index], "to": scales[reused.to_index]}
            ]
        return response

    def take_plan(self) -> StepPlan:
        """The plan of the step that is being scheduled."""
        block_scales: dict[int, list[int]] = {}
        for block_id, scale_index in self._assigned.items():
            block_scales.setdefault(scale_index, []).append(block_id)
        plan = StepPlan(rotations=self._rotations, block_scales=block_scales)
        self._rotations, self._assigned = [], {}
        return plan

    def take_report(self) -> dict[str, Any]:
        """What happened since the last call, in the form of ``counts.merged``; empty when nothing did."""
        report: dict[str, Any] = self._counts.take()
        levels = {
            self._scale_set.label(index): self._ledger.num_held(index) for index in range(len(self.deployment.scales))
        }
        if levels != self._levels:
            self._levels = levels
            report["kv_blocks"] = levels
        return report

    def _scale_of(self, running: _Running, num_tokens: int) -> int:
        """At which scale so many tokens were read to say the next one; it may be known only after a crossing."""
        if running.admission.on_crossing != "rerotate":
            return running.scale_index
        return max(running.first_index, self._scale_set.for_length(min(num_tokens, self.deployment.max_model_len)))

    def _record(self, running: _Running, from_index: int, to_index: int, num_tokens: int, how: OnCrossing) -> None:
        """Note a crossing, unless it is replayed: then it is in the list already."""
        if running.crossings and running.crossings[-1]["at"] >= num_tokens:
            return
        scales = self.deployment.scales
        running.crossings.append({"at": num_tokens, "from": scales[from_index], "to": scales[to_index], "how": how})
        self._counts.crossings[f"{self._label(from_index)} {self._label(to_index)} {how}"] += 1

    def _move(self, crossing: Crossing, move: BlockMove) -> None:
        if crossing.reuses_prefix:
            self._ledger.copy(crossing.request_id, move.source, move.target, crossing.from_index, crossing.to_index)
        else:
            self._ledger.move(crossing.request_id, move.source, move.target, crossing.to_index)

    def _private_regime(self, scale_index: int) -> str:
        self._num_private += 1
        return private(self.deployment, scale_index, self._num_private)

    def _label(self, scale_index: int) -> str:
        return self._scale_set.label(scale_index)
