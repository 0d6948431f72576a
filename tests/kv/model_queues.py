"""The queues of a model engine: its requests from admission to end, and the blocks that they take and lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from posenc_runtime.kv.coordinator import ScaleCoordinator
from posenc_runtime.kv.deployment import Deployment
from tests.kv.admitting import admit
from tests.kv.model_blocks import NULL_BLOCK, Pool, Workers
from tests.kv.model_groups import Groups
from tests.kv.model_request import Broken, Request


class Queues:
    """Who runs, who waits, and which blocks they hold.

    Args:
        num_blocks: vLLM's null block not counted.
    """

    def __init__(self, deployment: Deployment, *, block_size: int, num_blocks: int, groups: Groups) -> None:
        self.deployment = deployment
        self.groups = groups
        self.coordinator = ScaleCoordinator(deployment, num_blocks=num_blocks + 1)
        self.block_size = block_size
        self.pool = Pool(num_blocks)
        self.workers = Workers(num_blocks, block_size, groups)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.plain_scales: dict[str | None, int] = {}  # of the regimes that requests share
        self.happened: dict[str, Counter[str]] = {}  # in the form of a report
        self._num_admitted = 0
        self._preempted: list[Request] = []
        self._exchanged: set[Request] = set()

    @property
    def requests(self) -> list[Request]:
        return self.running + self.waiting

    @property
    def holders(self) -> list[Request]:
        """Who has blocks: whoever runs, or waits for copies."""
        return self.running + [request for request in self.waiting if request.has_blocks]

    def admit(self, prompt: list[int], max_tokens: int, asked: str | None) -> None:
        name = f"r{self._num_admitted}"
        request = Request(self.deployment, name, prompt, max_tokens, asked, self.block_size, self.groups)
        self._num_admitted += 1
        request.salt = admit(
            self.coordinator,
            request.request_id,
            num_prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            on_crossing=asked,
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

    def _hits(self, request: Request, salt: str | None) -> list[list[int]]:
        """For each group, the cached blocks of the longest prefix of which no query would miss a key."""
        longest = min(len(request.tokens), self._length_of_scale(request)) - 1
        for num_blocks in range(longest // self.block_size, 0, -1):
            found = []
            for number, group in enumerate(self.groups):
                num_gone = group.num_gone(num_blocks * self.block_size, self.block_size)
                table: list[int | None] = [NULL_BLOCK] * num_gone
                for index in range(num_gone, num_blocks):
                    prefix = tuple(request.tokens[: (index + 1) * self.block_size])
                    table.append(self.pool.find((number, salt, prefix)))
                found.append(table)
            if not any(block_id is None for table in found for block_id in table):
                return [[block_id for block_id in table if block_id is not None] for table in found]
        return [[] for _ in self.groups]

    def _num_blocks(self, request: Request) -> int:
        """Blocks of a request's tables, those that have left a window among them."""
        return -(-len(request.tokens) // self.block_size) * len(self.groups)

    def _length_of_scale(self, request: Request) -> int:
        return self.coordinator.length_of_scale(request.request_id)

    def _num_missing(self, request: Request, num_tokens: int) -> int:
        num_blocks = -(-(request.num_computed + num_tokens) // self.block_size)
        return sum(num_blocks - len(table) for table in request.tables)

    def _leave_windows(self, request: Request) -> None:
        """As vLLM before it allocates: give back what no query of a request reads any more."""
        for group, table in zip(self.groups, request.tables, strict=True):
            for index in range(min(group.num_gone(request.num_computed, self.block_size), len(table))):
                if block_id := table[index]:
                    table[index] = NULL_BLOCK
                    self.pool.give_back([block_id])
                    if group.scaled:
                        request.lost.add(block_id)

    def _written_by_others(self, block_ids: Iterable[int]) -> None:
        """Whoever has lost these blocks does not hold them in the ledger, either."""
        for request in self.requests:
            request.lost.difference_update(block_ids)

    def _allocate(self, request: Request, num_tokens: int) -> list[list[int]]:
        """Fresh blocks. What will be full after the step is cached at once: others may come in this very step."""
        num_computed = request.num_computed + num_tokens
        fresh = []
        for number, table in enumerate(request.tables):
            fresh.append(self.pool.take(-(-num_computed // self.block_size) - len(table)))
            table += fresh[-1]
            while (end := (request.num_named[number] + 1) * self.block_size) <= num_computed:
                if block_id := table[request.num_named[number]]:
                    self.pool.call(block_id, (number, request.salt, tuple(request.tokens[:end])))
                request.num_named[number] += 1
        return fresh

    def _crossed(self, request: Request, at: int, from_index: int, to_index: int) -> None:
        if request.crosses(at, from_index, to_index):
            label = f"{self._label(from_index)} {self._label(to_index)} {request.on_crossing}"
            self._count("crossings", label)

    def _lose_blocks(self, request: Request) -> None:
        self.pool.give_back(reversed(request.blocks))
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
