"""Which workers answer a step: with our connector as without any, the one that has the tokens.

With any connector vLLM has all of its workers send their whole output, because a worker may have to say which transfers
have ended. Ours transfer nothing, and all of them know the same. Decision 61.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.base import KVConnectorBase


class OneAnswers(KVOutputAggregator):
    """False to the executor, which asks whether there is anything to put together, and then hears of one worker.

    An executor that does not ask gets what vLLM would have given it.
    """

    def __bool__(self) -> bool:
        return False


def let_one_answer(connector_class: type[KVConnectorBase]) -> None:
    """Have the executors of this process hear of one worker where the connector is of this class.

    One that is a part of another connector is not: the others may have to be heard.
    """
    stock = KVOutputAggregator.from_connector.__func__
    if not hasattr(stock, "one_answers"):
        KVOutputAggregator.from_connector = classmethod(one_of(stock, connector_class))


def one_of(
    stock: Callable[..., KVOutputAggregator], connector_class: type[KVConnectorBase]
) -> Callable[..., KVOutputAggregator]:
    """``KVOutputAggregator.from_connector``, a class method, where a connector may be of this class."""

    @functools.wraps(stock)
    def from_connector(
        cls: type[KVOutputAggregator], connector: KVConnectorBase, world_size: int
    ) -> KVOutputAggregator:
        if isinstance(connector, connector_class):
            return OneAnswers(world_size)
        return stock(cls, connector, world_size)

    from_connector.one_answers = True  # type: ignore[attr-defined]
    return from_connector
