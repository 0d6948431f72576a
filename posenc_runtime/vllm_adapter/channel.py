"""Names of ours that vLLM's configuration and requests carry, and where vLLM finds what they name."""

from __future__ import annotations

import functools

CONNECTOR = "PosencConnector"
SCHEDULER = "posenc_runtime.vllm_adapter.scheduler.PosencScheduler"
ON_CROSSING = "posenc_on_crossing"  # key of a request's vllm_xargs with which it asks for another on_crossing


@functools.cache
def register() -> None:
    """Let ``kv_transfer_config`` name our connector without saying where its module is."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    KVConnectorFactory.register_connector(CONNECTOR, "posenc_runtime.vllm_adapter.connector", CONNECTOR)
