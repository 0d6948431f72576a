"""A model of the engine around a ``ScaleCoordinator``: queues, steps, and workers who do what the plan says.

It drives the coordinator as ``vllm_adapter`` does, with one KV cache group, and knows by itself what the ledger only
claims: which key lies in which slot, how far it is turned at this moment, and what was computed to get it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from posenc_runtime.kv.coordinator import ScaleCoordinator
from posenc_runtime.kv.crossing import blocks_to_copy
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.moves import BlockMove, HeldBlocks, Mask, Moves
from posenc_runtime.kv.regime import regime
from posenc_runtime.kv.step_plan import StepPlan
from tests.kv.model_blocks import Pool, Workers
from tests.kv.model_request import Broken, Request, Turning, smallest_scale


@dataclasses.dataclass(kw_only=True)
class Work:
    """A request's part of a step."""

    request: Request
    num_tokens: int
    fresh: list[int]
    new: bool = False
    resumed: bool = False


class ModelEngine:
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
    ) -> None:
        self.deployment = deployment
        self.coordinator = ScaleCoordinator(deployment, num_blocks=num_blocks + 1)
        self.block_size = block_size
        self.pool = Pool(num_blocks)
        self.workers = Workers(num_blocks, block_size)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.plain_scales: dict[str | None, int] = {}  # of the regimes that requests share
        self.happened: dict[str, Counter[str]] = {}  # in the form of a report
        self.num_moved: list[int] = []  # tokens of each block that was moved in the last step
        self._max_running = max_running
        self._late = late
        self._replaces_as_new = replaces_as_new
        self._num_admitted = 0
        self._preempted: list[Request] = []
        self._exchanged: set[Request] = set()
        self._read_by_now: list[int] = []
        self._sampled: list[list[tuple[Request, int | None]]] = []
        self._taking: list[Request] = []

    @property
    def requests(self) -> list[Request]:
        return self.running + self.waiting

    @property
    def holders(self) -> list[Request]:
        """Who has blocks: whoever runs, or waits for copies."""
        return self.running + [request for request in self.waiting if request.table]

    def admit(self, prompt: list[int], max_tokens: int, asked: str | None) -> None:
        request = Request(self.deployment, f"r{self._num_admitted}", prompt, max_tokens, asked, self.block_size)
        self._num_admitted += 1
        request.salt = self.coordinator.admit(
            request.request_id, num_prompt_tokens=len(prompt), max_tokens=max_tokens, on_crossing=asked
        )
        self._enter_plain_regime(request)
        self.waiting.append(request)
        self._count("requests", self._label(request.first))

    def finish(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        self.pool.give_back(self.coordinator.abandoned(request.request_id))
        said = self.coordinator.finished(request.request_id, num_output_tokens=request.num_output_tokens)
        self._lose_blocks(request)
        for scale_index in request.said_at:
            self._count("generation_tokens", self._label(scale_index))
        if said != request.response:
            raise Broken(f"{request.request_id} has become {request.response}, but its response says {said}")

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        request.salt, sources = self.coordinator.preempted(request.request_id)
        self._enter_plain_regime(request)
        self.pool.give_back(sources)
        self._lose_blocks(request)
        self.waiting.insert(0, request)
        self._preempted.append(request)

    def reset(self) -> None:
        """Preempt everybody and forget the prefix cache."""
        for request in reversed(self.running[:]):
            self.preempt(request)
        self.pool.evict(list(self.pool.names))

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

    def _cross(self) -> list[str]:
        """As ``PosencScheduler._cross``. Returns who is said to be whole again."""
        looked_at = set(self.coordinator.may_be_due())
        for request in list(self.running):
            if request not in self.running:
                continue
            request_id, is_known = request.request_id, len(request.tokens) > request.num_computed
            to_index = self.coordinator.due(request_id, request.num_computed)
            if request_id not in looked_at:
                if to_index is not None and is_known:
                    raise Broken(f"{request_id} is to cross at {request.num_computed} tokens, but nobody looks at it")
            elif not is_known:
                self.coordinator.look_again(request_id)
            elif to_index is None:
                self.coordinator.expect(request_id, len(request.tokens))
            elif self.coordinator.on_crossing(request_id) == "recompute":
                self._recompute(request, to_index)
            else:
                self._rerotate(request, to_index)
        progress = self.coordinator.advance()
        self._read_by_now += progress.read
        return progress.crossed + progress.reused

    def _recompute(self, request: Request, to_index: int) -> None:
        at, from_index = request.num_computed, request.first
        self.coordinator.generated(request.request_id, request.num_output_tokens)
        request.first = smallest_scale(self.deployment, at + 1)
        request.salt = self.coordinator.recompute(request.request_id, to_index, num_tokens=at)
        self._crossed(request, at, from_index, request.first)
        self.preempt(request)

    def _rerotate(self, request: Request, to_index: int) -> None:
        while (is_copied := self._blocks_to_copy(request, held := self._held(request))) is None:
            victim = self.running[-1]
            self.preempt(victim)
            if victim is request:
                return
        copied = set(held.block_id[is_copied].tolist())
        self._evict(set(held.block_id.tolist()) - copied)
        fresh = iter(self.pool.take(len(copied)))
        moves = []
        rows = zip(held.block_id.tolist(), held.first_position.tolist(), held.num_tokens.tolist(), strict=True)
        for index, (block_id, first_position, num_tokens) in enumerate(rows):
            request.table[index] = next(fresh) if block_id in copied else block_id
            moves.append(BlockMove(0, block_id, request.table[index], first_position, num_tokens))
        if copied:
            self._exchanged.add(request)
        request.turning = Turning(
            request=request,
            at=request.num_computed,
            from_index=request.scale_at(request.num_computed - 1),
            to_index=request.scale_at(request.num_computed),
            left={move.target: move for move in moves},
        )
        self.workers.expect(request.turning)
        request.salt = self.coordinator.rerotate(
            request.request_id, to_index, Moves.of(moves), num_tokens=request.num_computed
        )

    def _held(self, request: Request) -> HeldBlocks:
        positions = range(0, request.num_computed, self.block_size)
        block_ids = request.table[: len(positions)]
        in_first_regime = self.coordinator.in_first_regime(request.request_id)
        return HeldBlocks(
            group=np.zeros(len(positions), dtype=np.int64),
            block_id=np.array(block_ids, dtype=np.int64),
            first_position=np.array(positions, dtype=np.int64),
            num_tokens=np.array([min(request.num_computed - position, self.block_size) for position in positions]),
            shared=np.array([self.pool.num_users[block_id] > 1 for block_id in block_ids], dtype=np.bool_),
            cached=np.array(
                [block_id in self.pool.names and in_first_regime for block_id in block_ids], dtype=np.bool_
            ),
        )

    def _blocks_to_copy(self, request: Request, held: HeldBlocks) -> Mask | None:
        return blocks_to_copy(
            held,
            num_free=len(self.pool.free),
            num_needed=self._num_missing(request, len(request.tokens) - request.num_computed),
            num_reserved=len(self.running) - 1,
        )

    def _evict(self, block_ids: set[int]) -> None:
        """Blocks that will be turned in place."""
        self.pool.evict(block_ids)

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
        for request in sorted(self.waiting, key=lambda waiting: not waiting.table):
            if not token_budget or len(self.running) == self._max_running:
                return
            if request.num_in_flight or (request.turning and request.request_id not in whole):
                continue
            has_copies = bool(request.table)
            hits = request.table if has_copies else self._hits(request, request.salt)
            if not has_copies and self._takes_copies(request, hits):
                continue
            num_hit_tokens = len(hits) * self.block_size
            num_tokens = min(len(request.tokens) - num_hit_tokens, token_budget)
            num_tokens = self.coordinator.allowance(request.request_id, num_hit_tokens, num_tokens)
            num_missing = self._num_blocks(request) - len(hits)
            num_missing += sum(not self.pool.num_users[hit] for hit in hits)
            if not num_tokens or num_missing > len(self.pool.free):
                return
            if not has_copies:
                self.pool.share(hits)
                request.table, request.num_named, request.num_computed = hits, len(hits), num_hit_tokens
            self.waiting.remove(request)
            self.running.append(request)
            token_budget -= num_tokens
            fresh = self._allocate(request, num_tokens)
            new, request.has_run = not request.has_run, True
            yield Work(request=request, num_tokens=num_tokens, fresh=fresh, new=new, resumed=not new)

    def _takes_copies(self, request: Request, hits: list[int]) -> bool:
        """As ``PrefixReuse.find``, and vLLM's admission of a request whose keys are still to be loaded."""
        if self.deployment.prefix_reuse == "exact" or request.refused or request.has_run:
            return False
        found, from_index = hits, request.first
        for index in range(len(self.deployment.scales)):
            elsewhere = self._hits(request, regime(self.deployment, index))
            if len(elsewhere) > len(found):
                found, from_index = elsewhere, index
        sources = found[len(hits) :]
        num_free = len(self.pool.free) - sum(not self.pool.num_users[source] for source in sources)
        if not sources or num_free < -(-(len(request.tokens) + 1) // self.block_size):
            return False
        num_reserved = sum(self._num_blocks(other) - len(other.table) for other in self.waiting if other.table)
        num_missing = self._num_blocks(request) - len(hits) + sum(not self.pool.num_users[hit] for hit in hits)
        if num_missing + num_reserved > num_free:
            request.refused = True
            return False
        self.pool.share(hits + sources)
        targets = self.pool.take(len(sources))
        request.table, request.num_named, request.num_computed = hits + targets, len(hits), len(found) * self.block_size
        moves = {
            target: BlockMove(0, source, target, index * self.block_size, self.block_size)
            for index, (source, target) in enumerate(zip(sources, targets, strict=True), start=len(hits))
        }
        request.turning = Turning(
            request=request,
            at=request.num_computed,
            from_index=from_index,
            to_index=request.first,
            left=moves,
            reuses_from=len(hits) * self.block_size,
        )
        request.copied = dict.fromkeys(range(request.turning.reuses_from, request.num_computed), from_index)
        self._taking.append(request)
        return True

    def _begin_copies(self) -> None:
        """As ``PrefixReuse.begin``, when the step is planned."""
        for request in self._taking:
            turning = request.turning
            assert turning is not None
            self.workers.expect(turning)
            request.salt = self.coordinator.reuse(
                request.request_id,
                turning.from_index,
                Moves.of(turning.left.values()),
                num_tokens=len(request.copied),
            )
        self._taking.clear()

    def _hits(self, request: Request, salt: str | None) -> list[int]:
        longest = min(len(request.tokens), self._first_length(request)) - 1
        hits: list[int] = []
        for end in range(self.block_size, longest + 1, self.block_size):
            if (hit := self.pool.find((salt, tuple(request.tokens[:end])))) is None:
                break
            hits.append(hit)
        return hits

    def _num_blocks(self, request: Request) -> int:
        return -(-len(request.tokens) // self.block_size)

    def _first_length(self, request: Request) -> int:
        return self.coordinator.first_length(request.request_id)

    def _num_missing(self, request: Request, num_tokens: int) -> int:
        return -(-(request.num_computed + num_tokens) // self.block_size) - len(request.table)

    def _allocate(self, request: Request, num_tokens: int) -> list[int]:
        """Fresh blocks. What will be full after the step is cached at once: others may come in this very step."""
        fresh = self.pool.take(self._num_missing(request, num_tokens))
        request.table += fresh
        while (end := (request.num_named + 1) * self.block_size) <= request.num_computed + num_tokens:
            self.pool.call(request.table[request.num_named], (request.salt, tuple(request.tokens[:end])))
            request.num_named += 1
        return fresh

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
            tables.append((request_id, request.table, num_read) if told_anew else (request_id, work.fresh, 0))
            self._exchanged.discard(request)
        for request_id, block_ids, num_read in tables:
            self.coordinator.allocated(request_id, block_ids[num_read // self.block_size :])
        for request_id, block_ids, num_read in tables:
            self.coordinator.hit(request_id, block_ids[: num_read // self.block_size])
        return self.coordinator.take_plan()

    def _carry_out(self, plan: StepPlan, said_whole: list[str]) -> None:
        made = self.workers.carry_out(plan, self.running)
        self.num_moved = [min(turning.at - move.first_position, self.block_size) for turning, move in made]
        self._count("rerotated_tokens", "all", sum(self.num_moved))
        self._count("copied_blocks", "all", sum(move.source != move.target for _, move in made))
        whole = list(dict.fromkeys(turning for turning, _ in made if not turning.left))
        for turning in whole:
            if turning.reuses_from is not None:
                turning.request.reuses(turning)
                continue
            self._crossed(turning.request, turning.at, turning.from_index, turning.to_index)
        if sorted(turning.request.request_id for turning in whole) != sorted(said_whole):
            raise Broken(f"{said_whole} are said to be whole, but the workers have made {made}")

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

    def _crossed(self, request: Request, at: int, from_index: int, to_index: int) -> None:
        if request.crosses(at, from_index, to_index):
            label = f"{self._label(from_index)} {self._label(to_index)} {request.on_crossing}"
            self._count("crossings", label)

    def _lose_blocks(self, request: Request) -> None:
        self.pool.give_back(reversed(request.table))
        self._exchanged.discard(request)
        request.forget()

    def _enter_plain_regime(self, request: Request) -> None:
        scale = self.plain_scales.setdefault(request.salt, request.first)
        if scale != request.first:
            raise Broken(f"regime {request.salt} stands for scales number {scale} and {request.first}")

    def _count(self, name: str, label: str, number: int = 1) -> None:
        if number:
            self.happened.setdefault(name, Counter())[label] += number

    def _label(self, scale_index: int) -> str:
        return f"{self.deployment.scales[scale_index]:g}"
