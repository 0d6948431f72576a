"""A model of the engine around a ``ScaleCoordinator``: queues, steps, and workers who do what the plan says.

It drives the coordinator as ``vllm_adapter`` does, and knows by itself what the ledger only claims: which key lies in
which slot, how far it is turned at this moment, and what was computed to get it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.step_plan import StepPlan
from tests.kv.model_crossings import Crossings
from tests.kv.model_groups import ONE, Groups
from tests.kv.model_prefix_copies import PrefixCopies
from tests.kv.model_request import Broken, Request, Turning


@dataclasses.dataclass(kw_only=True)
class Work:
    """A request's part of a step."""

    request: Request
    num_tokens: int
    fresh: list[list[int]]
    new: bool = False
    resumed: bool = False


class ModelEngine(Crossings, PrefixCopies):
    """An engine.

    Args:
        late: the tokens of a step arrive after the next one was scheduled, as with two pipeline stages.
        replaces_as_new: workers hear of a preempted request, or of an exchanged table, as model runner V2 does.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        block_size: int,
        num_blocks: int,
        max_running: int,
        late: bool,
        replaces_as_new: bool,
        groups: Groups = ONE,
    ) -> None:
        super().__init__(deployment, block_size=block_size, num_blocks=num_blocks, groups=groups)
        self.num_moved: list[int] = []  # tokens of each block that was moved in the last step
        self._max_running = max_running
        self._late = late
        self._replaces_as_new = replaces_as_new
        self._sampled: list[list[tuple[Request, int | None]]] = []

    def step(self, token_budget: int) -> None:
        for request in self.running:
            request.num_settled = request.num_computed
        whole = self._cross()
        works = self._schedule(token_budget, whole)
        plan = self._plan(works)
        self._begin_copies()
        self._carry_out(plan, whole)
        self._sampled.append([(work.request, self._forward(work)) for work in works])
        while len(self._sampled) > self._late:
            self._arrive(self._sampled.pop(0))

    def _schedule(self, token_budget: int, whole: Sequence[str]) -> list[Work]:
        """As vLLM: who runs goes first, and takes blocks from who came last."""
        works: list[Work] = []
        num_waiting = len(self.waiting)
        for request in list(self.running):
            longest = self.deployment.max_model_len - 1 - request.num_computed
            num_tokens = min(len(request.tokens) - request.num_computed, longest, token_budget)
            num_tokens = self.coordinator.allowance(request.request_id, request.num_computed, num_tokens)
            if not num_tokens:
                continue
            self._leave_windows(request)
            while request in self.running and self._num_missing(request, num_tokens) > len(self.pool.free):
                self.preempt(self.running[-1])
            if request not in self.running:
                break
            works.append(Work(request=request, num_tokens=num_tokens, fresh=self._allocate(request, num_tokens)))
            token_budget -= num_tokens
        nobody_preempted = len(self.waiting) == num_waiting
        return [*works, *self._schedule_waiting(token_budget, whole)] if nobody_preempted else works

    def _schedule_waiting(self, token_budget: int, whole: Sequence[str]) -> Iterator[Work]:
        # Who holds blocks while it waits is drained first.
        for request in sorted(self.waiting, key=lambda waiting: not waiting.has_blocks):
            if not token_budget or len(self.running) == self._max_running:
                return
            if request.num_in_flight or (request.turning and request.request_id not in whole):
                continue
            has_copies = request.has_blocks
            hits = request.tables if has_copies else self._hits(request, request.salt)
            if not has_copies and self._takes_copies(request, hits):
                continue
            num_hit_tokens = len(hits[0]) * self.block_size
            num_tokens = min(len(request.tokens) - num_hit_tokens, token_budget)
            num_tokens = self.coordinator.allowance(request.request_id, num_hit_tokens, num_tokens)
            num_missing = self._num_blocks(request) - len(hits[0]) * len(self.groups)
            found = [hit for table in hits for hit in table if hit]
            num_missing += sum(not self.pool.num_users[hit] for hit in found)
            if not num_tokens or num_missing > len(self.pool.free):
                return
            if not has_copies:
                self.pool.share(found)
                request.tables, request.num_named = hits, [len(table) for table in hits]
                request.num_computed = num_hit_tokens
            self.waiting.remove(request)
            self.running.append(request)
            token_budget -= num_tokens
            self._leave_windows(request)
            fresh = self._allocate(request, num_tokens)
            new, request.has_run = not request.has_run, True
            yield Work(request=request, num_tokens=num_tokens, fresh=fresh, new=new, resumed=not new)

    def _plan(self, works: Sequence[Work]) -> StepPlan:
        """As ``PosencScheduler._build_kv_connector_meta`` and ``SchedulerHalf.build_metadata``."""
        sources, self._read_by_now = self._read_by_now, []
        self.pool.give_back(reversed(sources))
        for request in self._preempted:
            if request in self.requests:
                self.coordinator.preempted(request.request_id)
        self._preempted.clear()
        tables = []
        for work in works:
            request, request_id, num_read = work.request, work.request.request_id, work.request.num_computed
            self.coordinator.scheduled(request_id, num_read, work.num_tokens)
            if work.new or (work.resumed and self._replaces_as_new):
                self.coordinator.prefilling(request_id, num_hit_tokens=num_read)
            else:
                self.coordinator.generated(request_id, request.num_output_tokens)
            if work.new:
                self._count("prompt_tokens", self._label(request.first), request.num_prompt_tokens)
                self._count("prefix_hit_tokens", self._label(request.first), num_read - len(request.copied))
                for from_index in request.copied.values():
                    label = f"{self._label(from_index)} {self._label(request.first)}"
                    self._count("prefix_reused_tokens", label)
            if work.new or work.resumed:
                self.coordinator.look_again(request_id)
            told_anew = work.new or work.resumed or (request in self._exchanged and not self._replaces_as_new)
            told = (request.tables, num_read) if told_anew else (work.fresh, 0)
            tables += [(request_id, told[0][number], told[1]) for number in self._told_groups()]
            self._exchanged.discard(request)
        for request_id, block_ids, num_read in tables:
            fresh = block_ids[num_read // self.block_size :]
            self._written_by_others(fresh)
            self.coordinator.allocated(request_id, fresh)
        for request_id, block_ids, num_read in tables:
            self.coordinator.hit(request_id, block_ids[: num_read // self.block_size])
        return self.coordinator.take_plan()

    def _told_groups(self) -> list[int]:
        """The groups of whose blocks the coordinator hears."""
        return [number for number in range(len(self.groups)) if self._is_scaled(number)]

    def _carry_out(self, plan: StepPlan, said_whole: list[str]) -> None:
        made = self.workers.carry_out(plan, self.running)
        self.num_moved = [min(turning.at - move.first_position, self.block_size) for turning, move in made]
        self._count("rerotated_tokens", "all", sum(self.num_moved))
        self._count("copied_blocks", "all", sum(move.source != move.target for _, move in made))
        self._written_by_others([move.target for _, move in made])
        whole = list(dict.fromkeys(turning for turning, _ in made if not turning.left))
        whole += self._without_moves(whole, said_whole)
        for turning in whole:
            if turning.reuses_from is not None:
                turning.request.reuses(turning)
                continue
            self._crossed(turning.request, turning.at, turning.from_index, turning.to_index)
        if sorted(turning.request.request_id for turning in whole) != sorted(said_whole):
            raise Broken(f"{said_whole} are said to be whole, but the workers have made {made}")

    def _without_moves(self, whole: Sequence[Turning], said_whole: Sequence[str]) -> Iterator[Turning]:
        """Those of whose keys none was to be turned: all had left their windows."""
        for request in self.holders:
            turning = request.turning
            if turning and not turning.left and turning not in whole and request.request_id in said_whole:
                yield turning

    def _forward(self, work: Work) -> int | None:
        request = work.request
        token = self.workers.forward(request, work.num_tokens, self.running)
        request.num_in_flight += 1
        return token if request.num_computed == len(request.tokens) else None

    def _arrive(self, sampled: list[tuple[Request, int | None]]) -> None:
        for request, token in sampled:
            request.num_in_flight -= 1
            if token is not None and request in self.requests:
                request.said_at.append(request.scale_at(len(request.tokens) - 1))
                request.tokens.append(token)
                if len(request.tokens) == request.longest:
                    self.finish(request)
