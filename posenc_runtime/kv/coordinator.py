"""The coordinator: from requests and blocks to the plan of a step. Knows no engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from posenc_runtime.kv.admission import Admission
from posenc_runtime.kv.calendar import Calendar, steps_until_due
from posenc_runtime.kv.counts import TOTAL, Counts
from posenc_runtime.kv.crossing import Crossing, CrossingQueue, Rotation
from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.kv.histories import History, histories_of, histories_to_continue
from posenc_runtime.kv.ledger import NULL_BLOCK, BlockLedger, MixedRotations, Numbers
from posenc_runtime.kv.moves import Moves
from posenc_runtime.kv.regime import history, private, regime
from posenc_runtime.kv.running import Continued, ReusedPrefix, Running
from posenc_runtime.kv.step_plan import Progress, StepPlan


class ScaleCoordinator:
    """Decides scales and keeps the books: one object per engine, driven by its scheduler.

    With ``rerotate`` the scale at which a token is computed depends on its position and on the request's first
    scale alone: the first scale up to that scale's length, then the next. So a preempted request can replay its own
    history, and its answer does not depend on what else the server is doing. Decision 15.

    No step looks at every request: ``allowance`` is a look-up, ``may_be_due`` names the requests that may have reached
    the length of their scale, and the tokens of a request are counted when it gets a block, crosses or ends.
    Decision 11.

    Args:
        num_blocks: blocks of the pool, the null block among them.
        num_drafted: the most tokens that are drafted for a request in a step.

    Attributes:
        budget_tokens: the most cached tokens that are turned before a step. None until workers have reported their
            speed.
        shares_histories: whether other requests may find what a request has cached after a crossing. The scheduler says
            so, because it depends on the engine's caches, too.
    """

    def __init__(self, deployment: Deployment, *, num_blocks: int, num_drafted: int = 0) -> None:
        self.deployment = deployment
        self.budget_tokens = deployment.rerotate_budget_tokens
        self.shares_histories = False
        self._scale_set = deployment.scale_set
        self._lengths = self._scale_set.lengths
        self._labels = [self._scale_set.label(index) for index in range(len(self._lengths))]
        self._requests: dict[str, Running] = {}
        self._limits: dict[str, int] = {}  # tokens that a request may have before it must cross; 0 while it crosses
        self._calendar = Calendar()
        self._looked_at: list[str] = []
        self._ledger = BlockLedger(num_blocks)
        self._crossing = CrossingQueue()
        self._counts = Counts()
        self._rotations: list[Rotation] = []
        self._assigned: dict[int, int] = {}
        self._levels: dict[str, int] = {}
        self._num_private = 0
        self._num_drafted = num_drafted

    def admitted(self, request_id: str, admission: Admission, *, num_prompt_tokens: int) -> str | None:
        """Open a request's books. Returns the regime whose cached keys it may read, None for the unscaled one."""
        self._requests[request_id] = Running(
            admission=admission,
            num_prompt_tokens=num_prompt_tokens,
            first_index=admission.scale_index,
            scale_index=admission.scale_index,
        )
        self._limits[request_id] = self._lengths[admission.scale_index]
        self._counts.requests[self._labels[admission.scale_index]] += 1
        return regime(self.deployment, admission.scale_index)

    def histories(self, request_id: str, num_tokens: int) -> Iterator[History]:
        """What a request that waits may go on from, besides what its own first scale has cached; the best first.

        Args:
            num_tokens: tokens of the request.
        """
        running = self._requests[request_id]
        if running.admission.on_crossing != "rerotate" or not self.shares_histories:
            return
        if running.prefill_counted:  # it was preempted, and has a history of its own
            last = len(self._lengths) - 1
            for known in histories_of(self._scale_set, running.first_index, last, num_tokens):
                if known.scale_index != running.first_index:
                    yield known
        elif self.deployment.continues:
            yield from histories_to_continue(self._scale_set, running.admission.scale_index, num_tokens)

    def begin(self, request_id: str) -> int:
        """A request that waits is to begin at its first scale. Returns the index of that scale."""
        running = self._requests[request_id]
        if not running.prefill_counted and running.continued:
            running.continued = None
            running.first_index = running.admission.scale_index
        running.scale_index = running.first_index
        self._limits[request_id] = self._lengths[running.first_index]
        return running.first_index

    def go_on_from(self, request_id: str, found: History, *, num_tokens: int) -> None:
        """A request that waits is to go on from what requests of a history have cached.

        Args:
            num_tokens: tokens that it found.
        """
        running = self._requests[request_id]
        running.first_index, running.scale_index = found.first_index, found.scale_index
        self._limits[request_id] = self._lengths[found.scale_index]
        if not running.prefill_counted:
            running.continued = Continued(num_tokens, found.first_index, found.scale_index)
            return
        for index in range(found.first_index, found.scale_index):  # it may find more than it had itself
            self._record(running, index, index + 1, self._lengths[index], "rerotate")

    def allocated(self, request_id: str, block_ids: Sequence[int]) -> None:
        """A request got fresh blocks, which it will fill."""
        scale_index = self._requests[request_id].scale_index
        self._ledger.write(request_id, block_ids, scale_index)
        self._assigned.update((block_id, scale_index) for block_id in block_ids if block_id != NULL_BLOCK)

    def hit(self, request_id: str, block_ids: Sequence[int]) -> None:
        """A request got blocks from the prefix cache. Within a step, call this after every ``allocated``.

        Raises:
            MixedRotations: when a block carries another scale than the request's.
        """
        self._ledger.read(request_id, block_ids, self._requests[request_id].scale_index)

    def prefilling(self, request_id: str, *, num_hit_tokens: int) -> None:
        """A request was scheduled for the first time.

        Args:
            num_hit_tokens: tokens that it begins with, cached at its own scale or copied from another.
        """
        running = self._requests[request_id]
        if running.prefill_counted:
            return
        running.prefill_counted = True
        label = self._labels[running.scale_index]
        self._counts.prompt_tokens[label] += running.num_prompt_tokens
        num_exact = num_hit_tokens - running.num_reused_tokens
        if num_exact:
            self._counts.prefix_hit_tokens[label] += num_exact
        if running.reused:
            label = f"{self._labels[running.reused.from_index]} {self._labels[running.reused.to_index]}"
            self._counts.prefix_reused_tokens[label] += running.reused.num_tokens

    def generated(self, request_id: str, num_output_tokens: int) -> None:
        """A request has ``num_output_tokens`` by now. Each counts for the scale of its position, not of this moment.

        Drafted tokens that may yet be rejected must not be among them: what was counted stays counted.
        """
        running = self._requests[request_id]
        begin = running.num_prompt_tokens + running.num_output_tokens
        end = running.num_prompt_tokens + num_output_tokens
        if begin >= end:
            return
        running.num_output_tokens = num_output_tokens
        index, last = running.scale_index, len(self._lengths) - 1
        if running.admission.on_crossing == "rerotate":
            # The token at position `begin` was sampled by a query at the scale that covers `begin` tokens. The request
            # may report the token only after it has crossed to a later scale. Decision 13.
            index = max(running.first_index, self._scale_set.for_length(min(begin, self.deployment.max_model_len)))
        else:
            last = index
        while begin < end:
            stop = end if index == last else min(end, self._lengths[index] + 1)
            self._counts.generation_tokens[self._labels[index]] += stop - begin
            begin, index = stop, index + 1

    def on_crossing(self, request_id: str) -> OnCrossing:
        """What happens when a request outgrows its scale."""
        return self._requests[request_id].admission.on_crossing

    def first_index(self, request_id: str) -> int:
        """Index of the scale at which a request begins, and begins again after a preemption."""
        return self._requests[request_id].first_index

    def length_of_scale(self, request_id: str) -> int:
        """The most tokens that a request that waits computes at the scale at which it begins, or goes on."""
        return self._lengths[self._requests[request_id].scale_index]

    def can_be_found(self, request_id: str) -> bool:
        """Whether other requests could read all keys that this request has computed so far."""
        running = self._requests[request_id]
        if running.num_reused_tokens or request_id in self._crossing:
            return False
        return self.shares_histories or running.scale_index == running.first_index

    def may_be_due(self) -> list[str]:
        """A step begins. Returns the requests that may have reached the length of their scale.

        Call ``expect`` again for those that have not.
        """
        self._looked_at = self._calendar.next_step()
        return self._looked_at

    def expect(self, request_id: str, num_known_tokens: int) -> None:
        """Look at a request again when it may have reached the length of its scale.

        Args:
            num_known_tokens: tokens that the request has now, with those that the current step computes.
        """
        if self._can_cross(request_id):
            length = self._limits[request_id]
            num_steps = steps_until_due(length, num_known_tokens, num_drafted=self._num_drafted)
            self._calendar.note(request_id, num_steps)

    def look_again(self, request_id: str) -> None:
        """Look at a request when the next step begins, because it began to run, goes on, or has to wait."""
        if self._can_cross(request_id):
            self._calendar.note(request_id, 1)

    def due(self, request_id: str, num_computed_tokens: int) -> int | None:
        """Index of the scale that a request must cross to before its next token; None when it may go on."""
        running = self._requests[request_id]
        if request_id in self._crossing or num_computed_tokens < self._lengths[running.scale_index]:
            return None
        return self._scale_set.for_length(num_computed_tokens + 1)

    def allowance(self, request_id: str, num_computed_tokens: int, num_new_tokens: int) -> int:
        """How many of its next ``num_new_tokens`` a request may compute before it must cross; 0 while it crosses."""
        left = self._limits[request_id] - num_computed_tokens
        if num_new_tokens <= left:
            return num_new_tokens
        return left if left > 0 else 0

    def holds_only(self, request_id: str, block_ids: Numbers, alone: Numbers) -> None:
        """Called before a request with sliding windows crosses: blocks may have left it and other requests.

        Args:
            block_ids: all blocks that the request holds.
            alone: blocks that no other request holds, whether this request does or not.
        """
        self._ledger.hold_only(request_id, block_ids, alone)

    def rerotate(
        self, request_id: str, to_index: int, moves: Moves, *, num_tokens: int, ahead: Sequence[int] = ()
    ) -> str:
        """Begin to turn a request's cached keys; it must not run until ``advance`` names it.

        Args:
            moves: one for every block with keys of the request; none if all its keys have left their windows.
            num_tokens: tokens computed so far.
            ahead: blocks behind these tokens, which the request holds for drafted tokens.

        Returns:
            The regime of what the request computes from now on. No request that begins at the new scale may read these
            keys, because the request's values and deeper keys were computed at older scales. Those of the same history
            may, where histories are shared; otherwise no other request has this regime.
        """
        running = self._requests[request_id]
        self._begin(
            Crossing(
                request_id=request_id,
                from_index=running.scale_index,
                to_index=to_index,
                num_tokens=num_tokens,
                moves=moves,
                ahead=ahead,
            )
        )
        if self.is_private(request_id):
            return self._private_regime(to_index)
        return str(history(self.deployment, running.first_index, to_index))

    def is_private(self, request_id: str) -> bool:
        """Whether the blocks that a request fills after a crossing are its own."""
        return not self.shares_histories or self._requests[request_id].num_reused_tokens > 0

    def reuse(self, request_id: str, from_index: int, moves: Moves, *, num_tokens: int) -> str:
        """Begin to copy a prefix that is cached at another scale; the request must not run until ``advance`` names it.

        Args:
            from_index: scale of the cached prefix.
            moves: one for every block of it.
            num_tokens: length of the copied prefix.

        Returns:
            The request's regime from now on. No other request has it, because the copies are an approximation.
        """
        running = self._requests[request_id]
        running.num_reused_tokens = num_tokens
        self._begin(
            Crossing(
                request_id=request_id,
                from_index=from_index,
                to_index=running.scale_index,
                num_tokens=num_tokens,
                moves=moves,
                reuses_prefix=True,
            )
        )
        return self._private_regime(running.scale_index)

    def recompute(self, request_id: str, to_index: int, *, num_tokens: int) -> str | None:
        """A request is prefilled again from its first token, at another scale. Returns its regime from now on."""
        running = self._requests[request_id]
        self._record(running, running.scale_index, to_index, num_tokens, "recompute")
        running.first_index = running.scale_index = to_index
        running.num_reused_tokens = 0
        self._limits[request_id] = self._lengths[to_index]
        self._ledger.release(request_id)
        return regime(self.deployment, to_index)

    def advance(self) -> Progress:
        """Put the next step's share of the moves into the plan; call once for each step."""
        rotations, completed = self._crossing.advance(self.budget_tokens)
        progress = Progress()
        for crossing, rotation in rotations:
            self._rotations.append(rotation)
            progress.read += self._move(crossing, rotation)
            self._requests[crossing.request_id].scale_index = rotation.to_index
            self._counts.rerotated_tokens[TOTAL] += int(rotation.moves.num_tokens.sum())
        if progress.read:
            self._counts.copied_blocks[TOTAL] += len(progress.read)
        for crossing in completed:
            request_id = crossing.request_id
            running = self._requests[request_id]
            running.scale_index = crossing.to_index  # also where no block had to be moved
            if crossing.ahead:
                self.allocated(request_id, crossing.ahead)
            self._ledger.check(request_id, crossing.to_index)
            self._limits[request_id] = self._lengths[crossing.to_index]
            if crossing.reuses_prefix:
                running.reused = ReusedPrefix(crossing.num_tokens, crossing.from_index, crossing.to_index)
                progress.reused.append(request_id)
            else:
                self._record(running, crossing.from_index, crossing.to_index, crossing.num_tokens, "rerotate")
                self.look_again(request_id)
                progress.crossed.append(request_id)
        return progress

    def scheduled(self, request_id: str, num_computed_tokens: int, num_new_tokens: int) -> None:
        """A request runs in the step that is being planned.

        Raises:
            MixedRotations: when it would read keys of two scales, or write past the length of its own scale.
        """
        if self.allowance(request_id, num_computed_tokens, num_new_tokens) != num_new_tokens:
            state = "is crossing" if request_id in self._crossing else "has reached the length of its scale"
            raise MixedRotations(
                f"request {request_id} was scheduled for tokens {num_computed_tokens} to "
                f"{num_computed_tokens + num_new_tokens}, but the request {state}"
            )

    def to_be_checked(self) -> Collection[str]:
        """The running requests that could break the rule of ``scheduled``: no other is near the length of its scale.

        The caller also checks each request that gets blocks or begins to run.
        """
        return [*self._looked_at, *self._crossing.names] if self._crossing else self._looked_at

    def preempted(self, request_id: str) -> tuple[str | None, list[int]]:
        """A request lost its blocks and will be computed again from its first token, at its first scale.

        Returns:
            Its regime from now on, and the sources of copies that were never made.
        """
        running = self._requests[request_id]
        running.scale_index = running.first_index
        running.num_reused_tokens = 0
        self._limits[request_id] = self._lengths[running.first_index]
        self._calendar.forget(request_id)
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
        self._calendar.forget(request_id)
        said = self.said_so_far(request_id)
        del self._requests[request_id], self._limits[request_id]
        return said

    def said_so_far(self, request_id: str) -> dict[str, Any]:
        """What the response of a request says, or would say if it ended now."""
        return self._requests[request_id].said_so_far(self.deployment)

    def take_plan(self) -> StepPlan:
        """The plan of the step that is being scheduled."""
        assigned = self._assigned
        block_scales = {
            index: [block_id for block_id, scale_index in assigned.items() if scale_index == index]
            for index in sorted(set(assigned.values()))
        }
        plan = StepPlan(rotations=self._rotations, block_scales=block_scales)
        self._rotations, self._assigned = [], {}
        return plan

    def take_report(self) -> dict[str, Any]:
        """What happened since the last call, in the form of ``counts.merged``; empty when nothing did."""
        report: dict[str, Any] = self._counts.take()
        levels = {label: self._ledger.num_held(index) for index, label in enumerate(self._labels)}
        if levels != self._levels:
            self._levels = levels
            report["kv_blocks"] = levels
        return report

    def _can_cross(self, request_id: str) -> bool:
        running = self._requests[request_id]
        return running.admission.on_crossing != "pin" and running.scale_index < len(self._lengths) - 1

    def _begin(self, crossing: Crossing) -> None:
        self._crossing.begin(crossing)
        self._limits[crossing.request_id] = 0

    def _record(self, running: Running, from_index: int, to_index: int, num_tokens: int, how: OnCrossing) -> None:
        """Note a crossing, unless a preempted request replays it: then the list has it already."""
        if running.crossings and running.crossings[-1]["at"] >= num_tokens:
            return
        if running.continued and running.continued.num_tokens >= num_tokens:
            return  # others crossed there before this request began
        scales = self.deployment.scales
        running.crossings.append({"at": num_tokens, "from": scales[from_index], "to": scales[to_index], "how": how})
        self._counts.crossings[f"{self._labels[from_index]} {self._labels[to_index]} {how}"] += 1

    def _move(self, crossing: Crossing, rotation: Rotation) -> list[int]:
        """Book a rotation. Returns the sources of its copies."""
        moves, name = rotation.moves, crossing.request_id
        if crossing.reuses_prefix:
            self._ledger.copy(name, moves.source, moves.target, crossing.from_index, crossing.to_index)
        else:
            self._ledger.move(name, moves.source, moves.target, crossing.to_index)
        self._assigned.update(dict.fromkeys(moves.target.tolist(), crossing.to_index))
        copied: list[int] = moves.source[moves.copies].tolist()
        return copied

    def _private_regime(self, scale_index: int) -> str:
        self._num_private += 1
        return private(self.deployment, scale_index, self._num_private)
