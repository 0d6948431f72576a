"""How many sequences a running engine has, and what it has room for."""

from __future__ import annotations

import dataclasses
from typing import Any

from posenc_runtime.vllm_adapter.carried_names import CONNECTOR

_STARTING = 1024  # sequences at once, as long as no engine says how many


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capacity:
    """What an engine has now.

    Attributes:
        running: sequences that it runs at once; of all engines of a server.
        held: sequences that it has from this API server.
        takes_transfer_params: whether it has a connector, beside ours, that may need parameters of clients.
    """

    running: int = _STARTING
    held: int = 0
    takes_transfer_params: bool = False


def capacity_of(engine: Any) -> Capacity:
    """What vLLM's client of an engine says; None of an engine is one that does not run yet."""
    config = getattr(engine, "vllm_config", None)
    if config is None:
        return Capacity()
    transfer = config.kv_transfer_config
    beside = transfer is not None and transfer.kv_connector not in (None, CONNECTOR)
    return Capacity(
        running=config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size,
        held=len(engine.output_processor.request_states),
        takes_transfer_params=beside or getattr(config, "ec_transfer_config", None) is not None,
    )
