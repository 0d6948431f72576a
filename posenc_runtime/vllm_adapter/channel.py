"""What vLLM's configuration names of ours, and where vLLM finds it: the connector and the scheduler."""

from __future__ import annotations

CONNECTOR = "PosencConnector"
SCHEDULER = "posenc_runtime.vllm_adapter.scheduler.PosencScheduler"
_registered = False


def register() -> None:
    """Let ``kv_transfer_config`` name our connector without saying where its module is."""
    global _registered
    if _registered:
        return
    _registered = True
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    KVConnectorFactory.register_connector(CONNECTOR, "posenc_runtime.vllm_adapter.connector", CONNECTOR)
