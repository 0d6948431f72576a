"""One worker answers a step, where our connector is the engine's own."""

from __future__ import annotations

import inspect
from collections import deque
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

from posenc_runtime.vllm_adapter.in_worker.answers import let_one_answer

WORLD_SIZE, OUTPUT_RANK = 4, 2


class Theirs:
    """A connector with transfers to be heard of, maybe of several that it is made of."""

    def get_finished_count(self) -> int | None:
        return None


class Ours(Theirs):
    """A connector whose workers all know the same."""


@pytest.fixture(autouse=True)
def stock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not this process has imported our connector, which lets one answer."""
    from_connector = inspect.unwrap(KVOutputAggregator.from_connector.__func__)
    monkeypatch.setattr(KVOutputAggregator, "from_connector", classmethod(from_connector))


class Queue:
    """Of a worker's answers, or of what all are asked."""

    def __init__(self, answer: Any = None) -> None:
        self.asked: list[Any] = []
        self._answer = answer
        self.num_read = 0

    def enqueue(self, asked: Any) -> None:
        self.asked.append(asked)

    def dequeue(self, timeout: float | None = None) -> Any:
        self.num_read += 1
        return WorkerProc.ResponseStatus.SUCCESS, self._answer


class Output:
    """A worker's."""

    kv_connector_output = None

    def __init__(self, rank: int) -> None:
        self.rank = rank


def executor(connector: Any) -> tuple[Any, Queue, list[Queue]]:
    """vLLM's own, its queues to four workers being lists."""
    made: Any = MultiprocExecutor.__new__(MultiprocExecutor)
    asked, answers = Queue(), [Queue(Output(rank)) for rank in range(WORLD_SIZE)]
    made.is_failed, made.output_rank = False, OUTPUT_RANK
    made.rpc_broadcast_mq, made.response_mqs, made.futures_queue = asked, answers, deque()
    made.ec_output_aggregator = None
    made.parallel_config = type("Parallel", (), {"world_size": WORLD_SIZE})
    made.init_kv_output_aggregator(connector)
    return made, asked, answers


@pytest.mark.parametrize("method", ["execute_model", "sample_tokens"])
def test_only_the_worker_with_the_tokens_is_heard(method: str) -> None:
    let_one_answer(Ours)  # type: ignore[arg-type]
    made, asked, answers = executor(Ours())
    assert getattr(made, method)(None).rank == OUTPUT_RANK
    assert asked.asked == [(method, (None,), {}, OUTPUT_RANK)]  # nobody else sends anything
    assert [answer.num_read for answer in answers] == [0, 0, 1, 0]


def test_all_workers_of_another_connector_are_heard() -> None:
    let_one_answer(Ours)  # type: ignore[arg-type]
    made, asked, answers = executor(Theirs())
    made.kv_output_aggregator.aggregate = lambda outputs, output_rank: outputs[output_rank]
    assert made.execute_model(None).rank == OUTPUT_RANK
    assert asked.asked == [("execute_model", (None,), {}, None)]
    assert [answer.num_read for answer in answers] == [1, 1, 1, 1]


def test_an_executor_that_merges_answers_itself_gets_the_one_with_the_tokens() -> None:
    let_one_answer(Ours)  # type: ignore[arg-type]
    aggregator: Any = KVOutputAggregator.from_connector(Ours(), WORLD_SIZE)
    assert aggregator is not None
    outputs: list[Any] = [Output(rank) for rank in range(WORLD_SIZE)]
    assert aggregator.aggregate(outputs, output_rank=0).rank == 0


def test_the_connector_of_a_second_engine_changes_nothing_more() -> None:
    let_one_answer(Ours)  # type: ignore[arg-type]
    first = KVOutputAggregator.__dict__["from_connector"]
    let_one_answer(Ours)  # type: ignore[arg-type]
    assert KVOutputAggregator.__dict__["from_connector"] is first
