"""Whatever clients ask and however tight the pool is, every request reads its own keys, turned by its own scale."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from posenc_runtime.kv.deployment import Deployment
from tests.kv.model_blocks import UNSCALED, contents
from tests.kv.model_engine import ModelEngine
from tests.kv.model_groups import MODELS, ONE, Group, Groups
from tests.kv.model_request import Broken, Request

# Prompts are the beginnings of two texts, so that blocks are shared, and a request has a twin now and then.
TEXTS = ([0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 1], [0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 1])
MAX_STEPS = 3000
MOST_TOKENS = 24  # of a step


def num_needed(group: Group, longest: int, block_size: int) -> int:
    """Blocks of a group that a request holds at most. A window need not begin where a block does."""
    reads = group.window or group.chunk
    return min(math.ceil(longest / block_size), math.ceil(((reads or longest) + MOST_TOKENS) / block_size) + 1)


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    trained = draw(st.integers(6, 12))
    return Deployment(
        rope_type="linear",
        scales=draw(st.sampled_from([(1.0, 2.0, 4.0), (1.0, 1.5, 4.0)])),
        original_max_position_embeddings=trained,
        max_model_len=draw(st.integers(trained + 2, 4 * trained)),
        headroom_tokens=draw(st.integers(1, 4)),
        on_crossing=draw(st.sampled_from(["rerotate"] * 5 + ["recompute", "pin"])),
        prefix_reuse=draw(st.sampled_from(["exact", "rerotate"])),
        rerotate_budget_tokens=draw(st.sampled_from([1, 2, 3, 6, 20])),
    )


@dataclasses.dataclass(frozen=True)
class Arrival:
    """What clients send at one moment: the same request, so many times."""

    prompt: list[int]
    max_tokens: int
    asked: str | None
    twins: int


ARRIVALS = st.builds(
    Arrival,
    prompt=st.builds(
        lambda text, length, rest: TEXTS[text][:length] + rest,
        st.integers(0, 1),
        st.integers(1, 14),
        st.lists(st.integers(0, 1), max_size=2),
    ),
    max_tokens=st.sampled_from([2, 9, 18, 40]),
    asked=st.sampled_from([None] * 4 + ["rerotate", "recompute", "pin"]),
    twins=st.integers(1, 3),
)


class Serving(RuleBasedStateMachine):
    """Requests come, go and are preempted between the steps of an engine."""

    @initialize(
        deployment=deployments(),
        block_size=st.integers(1, 4),
        num_spare_blocks=st.sampled_from([0, 0, 1, 2, 4, 16]),
        max_running=st.integers(2, 5),
        late=st.booleans(),
        replaces_as_new=st.booleans(),
        arrivals=st.lists(ARRIVALS, min_size=1, max_size=3),
        groups=st.sampled_from([*MODELS.values()]),
    )
    def start(
        self,
        deployment: Deployment,
        block_size: int,
        num_spare_blocks: int,
        max_running: int,
        late: bool,
        replaces_as_new: bool,
        arrivals: list[Arrival],
        groups: Groups = ONE,
    ) -> None:
        # An engine does not start with less than its longest request needs.
        self.num_blocks = sum(num_needed(group, deployment.max_model_len, block_size) for group in groups)
        self.num_blocks += num_spare_blocks
        self.engine = ModelEngine(
            deployment,
            block_size=block_size,
            num_blocks=self.num_blocks,
            max_running=max_running,
            late=late,
            replaces_as_new=replaces_as_new,
            groups=groups,
        )
        self.reported: dict[str, Counter[str]] = {}
        self.levels: dict[str, int] = {}
        for arrival in arrivals:
            self.admit(arrival)

    @rule(arrival=ARRIVALS)
    def admit(self, arrival: Arrival) -> None:
        deployment = self.engine.deployment
        prompt = arrival.prompt[: deployment.max_model_len - 1]
        # What is not to be had is refused before it comes this far.
        asked = arrival.asked if deployment.on_crossing in ("rerotate", arrival.asked) else None
        for _ in range(arrival.twins):
            self.engine.admit(prompt, arrival.max_tokens, asked)

    @rule(num_steps=st.integers(1, 5), token_budget=st.integers(1, MOST_TOKENS))
    def step(self, num_steps: int, token_budget: int) -> None:
        for _ in range(num_steps):
            turning = [request for request in self.engine.holders if request.turning]
            self.engine.step(token_budget)
            self.all_laws_hold()
            self.crossings_go_on_within_the_budget(turning)

    @precondition(lambda self: self.engine.running)
    @rule(number=st.integers(0, 4))
    def preempt(self, number: int) -> None:
        self.engine.preempt(self.chosen(self.engine.running, number))

    @precondition(lambda self: self.engine.requests)
    @rule(number=st.integers(0, 9))
    def cancel(self, number: int) -> None:
        self.engine.finish(self.chosen(self.engine.requests, number))

    @rule()
    def reset(self) -> None:
        self.engine.reset()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(MAX_STEPS):
            if not self.engine.requests:
                break
            self.step(1, 16)
        if self.engine.requests:
            raise Broken(f"{len(self.engine.requests)} requests do not come to an end")
        if self.reported != self.engine.happened:
            raise Broken(f"what happened is {self.engine.happened}, but the reports say {self.reported}")

    @staticmethod
    def chosen(requests: Sequence[Request], number: int) -> Request:
        """Preferably one that is crossing or has crossed."""
        return sorted(requests, key=lambda request: (not request.turning, not request.crossings))[
            number % len(requests)
        ]

    @invariant()
    def all_laws_hold(self) -> None:
        for request in self.engine.holders:
            self.a_request_finds_what_it_would_find_alone(request)
        self.the_prefix_cache_holds_what_a_plain_prefill_leaves()
        self.no_block_is_kept_for_nobody()
        self.the_ledger_knows_what_running_requests_hold()

    def a_request_finds_what_it_would_find_alone(self, request: Request) -> None:
        scales = [request.scale_at(position) for position in range(request.num_computed + 1)]
        expected = list(contents(request.tokens, scales[:-1], request.copied))
        found = set()
        for group, table, lies_in in zip(request.groups, request.tables, request.lies_in, strict=True):
            for position in range(group.first_read(request.num_computed), request.num_computed):
                key = self.engine.workers.key(lies_in, position)
                if key.content != expected[position]:
                    raise Broken(f"{request.request_id} finds somebody else's key at position {position} of {group}")
                if not group.scaled:
                    if key.angle != UNSCALED:
                        raise Broken(f"{request.request_id} finds a key turned that is not scaled: {key}")
                    continue
                found.add(key.scale)
                block_id = table[position // self.engine.block_size]
                if request.turning and key.scale != request.turning.carried_by(block_id):
                    raise Broken(f"{request.request_id} is crossing, but block {block_id} is at number {key.scale}")
        # A request that is whole again has its next scale's keys before it computes the next token.
        if not request.turning and (len(found) > 1 or not found <= set(scales[-2:])):
            raise Broken(f"{request.request_id} has {request.num_computed} keys, of scales number {found}")

    def the_prefix_cache_holds_what_a_plain_prefill_leaves(self) -> None:
        for block_id, (number, salt, tokens) in self.engine.pool.names.items():
            if salt not in self.engine.plain_scales:
                continue
            scale = self.engine.plain_scales[salt]
            begin = len(tokens) - self.engine.block_size
            for offset, content in enumerate(list(contents(tokens, [scale] * len(tokens)))[begin:]):
                key = self.engine.workers.key([block_id], offset)
                is_scaled = self.engine.groups[number].scaled
                if key.content != content or (key.scale != scale if is_scaled else key.angle != UNSCALED):
                    raise Broken(f"block {block_id} is cached for scale number {scale}, but holds {key}")

    def no_block_is_kept_for_nobody(self) -> None:
        users = Counter(block_id for request in self.engine.holders for block_id in request.blocks)
        users.update(
            block_id for request in self.engine.holders if request.turning for block_id in request.turning.unread
        )
        pool = self.engine.pool
        if users != +pool.num_users or len(users) + len(pool.free) != self.num_blocks:
            raise Broken(f"{users} use blocks, but the pool has {pool.num_users} and {len(pool.free)} free ones")

    def the_ledger_knows_what_running_requests_hold(self) -> None:
        report = self.engine.coordinator.take_report()
        self.levels = report.pop("kv_blocks", self.levels)
        for name, counts in report.items():
            self.reported.setdefault(name, Counter()).update(counts)
        engine = self.engine
        held = {block_id for request in engine.running for block_id in request.scaled_blocks | request.lost}
        held |= {block_id for request in engine.waiting for block_id in request.in_ledger}
        levels = Counter(f"{engine.deployment.scales[engine.workers.scales[block_id]]:g}" for block_id in held)
        if +Counter(self.levels) != levels:
            raise Broken(f"running requests hold {levels}, but the ledger says {self.levels}")

    def crossings_go_on_within_the_budget(self, turning: Sequence[Request]) -> None:
        num_moved = self.engine.num_moved
        if not num_moved and any(request.turning for request in turning):
            raise Broken("a request waits for its keys, but none was turned in a whole step")
        if sum(num_moved) >= (self.engine.deployment.rerotate_budget_tokens or 0) + self.engine.block_size:
            raise Broken(f"the keys of {num_moved} tokens were turned in one step")


def test_whatever_happens_every_request_reads_its_own_keys_turned_by_its_own_scale() -> None:
    run_state_machine_as_test(
        Serving,
        settings=settings(max_examples=200, stateful_step_count=30, database=None, derandomize=True),
    )
