"""The queues of a model engine: its requests from admission to end, and the blocks that they take and lose."""

from __future__ import annotations

from collections import Counter

from posenc_runtime.kv.coordinator import ScaleCoordinator
from posenc_runtime.kv.deployment import Deployment
from tests.kv.model_blocks import Pool, Workers
from tests.kv.model_request import Broken, Request


class Queues:
    """Who runs, who waits, and which blocks they hold.

    Args:
        num_blocks: vLLM's null block not counted.
    """

    def __init__(self, deployment: Deployment, *, block_size: int, num_blocks: int) -> None:
        self.deployment = deployment
        self.coordinator = ScaleCoordinator(deployment, num_blocks=num_blocks + 1)
        self.block_size = block_size
        self.pool = Pool(num_blocks)
        self.workers = Workers(num_blocks, block_size)
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
