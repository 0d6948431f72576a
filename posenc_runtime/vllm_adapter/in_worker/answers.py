"""With our connector, too, only the worker that has the tokens sends its output after a step.

With a connector, vLLM makes every worker send its whole output, because each worker may have to report which transfers
have ended. Our connector transfers nothing, so one worker is enough. Decision 61.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.base import KVConnectorBase


class OneAnswers(KVOutputAggregator):
    """An aggregator that counts as false, so that the executor asks only one worker for its output.

    An executor that does not test the aggregator's truth aggregates as with vLLM's own.
    """

    def __bool__(self) -> bool:
        return False


def let_one_answer(connector_class: type[KVConnectorBase]) -> None:
    """Make the executors of this process ask only one worker if the engine's connector is of ``connector_class``.

    A connector that wraps ours among others does not count: the others may need the output of every worker.
    """
    stock = KVOutputAggregator.from_connector.__func__
    if not hasattr(stock, "one_answers"):
        KVOutputAggregator.from_connector = classmethod(one_of(stock, connector_class))


def one_of(
    stock: Callable[..., KVOutputAggregator], connector_class: type[KVConnectorBase]
) -> Callable[..., KVOutputAggregator]:
    """A replacement for the class method ``KVOutputAggregator.from_connector``, with a case for ``connector_class``."""

    @functools.wraps(stock)
    def from_connector(
        cls: type[KVOutputAggregator], connector: KVConnectorBase, world_size: int
    ) -> KVOutputAggregator:
        if isinstance(connector, connector_class):
            return OneAnswers(world_size)
        return stock(cls, connector, world_size)

    from_connector.one_answers = True  # type: ignore[attr-defined]
    return from_connector
