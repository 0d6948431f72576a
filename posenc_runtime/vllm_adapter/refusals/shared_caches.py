"""Which KV connectors an engine may have where queries turn: connectors whose blocks no other deployment reads.

Keys and values of tokens past the trained length depend on the method, its window and its page. Where a cache outlives
its engine or is shared by several, a deployment with other ones would find its tokens there, and read foreign blocks as
its own. What such caches name blocks by says nothing of the method: the model's name, tokens, data type and layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_runtime.vllm_adapter.contract.errors import Unsupported

OFFLOADING = "OffloadingConnector"
IN_MEMORY = "CPUOffloadingSpec"

_OTHER_ENGINES = (
    "other engines read its blocks. It names blocks by model and tokens alone, so an engine with another rope_type, "
    "window or page would take them for its own"
)
_DISK = "its blocks outlive the engine. It names blocks by model and tokens alone, so a later engine would read them"
_UNSHOWN = "no test shows that its answers are right"
_REASONS = {
    "ExampleConnector": _DISK,
    "FlexKVConnectorV1": _OTHER_ENGINES,
    "HF3FSKVConnector": _DISK,
    "LMCacheConnectorV1": _OTHER_ENGINES,
    "LMCacheMPConnector": _OTHER_ENGINES,
    "MoRIIOConnector": _OTHER_ENGINES,
    "MooncakeConnector": _OTHER_ENGINES,
    "MooncakeStoreConnector": _OTHER_ENGINES,
    "NixlConnector": _OTHER_ENGINES,
    "NixlPullConnector": _OTHER_ENGINES,
    "NixlPushConnector": _OTHER_ENGINES,
}


def refuse_shared_cache(transfer: Any, rope_type: str) -> None:
    """Check ``kv_transfer_config`` of an engine whose queries turn.

    Args:
        transfer: vLLM's ``KVTransferConfig``, or a mapping with its fields; None for no connector.

    Raises:
        Unsupported: unless it is vLLM's own offloading to memory of the engine; the message gives the reason.
    """
    if transfer is None:
        return
    said: Mapping[str, Any] = transfer if isinstance(transfer, Mapping) else vars(transfer)
    name, module = said.get("kv_connector"), said.get("kv_connector_module_path")
    if name is None:
        return  # vLLM makes no connector of it
    if name != OFFLOADING or module:
        reason = _UNSHOWN if module else _REASONS.get(str(name), _UNSHOWN)
        raise Unsupported(
            f"kv_transfer_config.kv_connector must be {OFFLOADING} of vLLM where rope_type is {rope_type}, got "
            f"{f'{name} of {module}' if module else name}: {reason}. Leave kv_transfer_config out, or set "
            "kv_offloading_size, GiB"
        )
    spec = (said.get("kv_connector_extra_config") or {}).get("spec_name", IN_MEMORY)
    if spec != IN_MEMORY:
        raise Unsupported(
            f"kv_transfer_config.kv_connector_extra_config.spec_name must be {IN_MEMORY} where rope_type is "
            f"{rope_type}, got {spec}: tiers below the engine's memory outlive the engine, or several engines share "
            "them. They name blocks by model and tokens alone. Leave spec_name out"
        )


def refuse_shared_offloading(size: float | None, backend: str | None, rope_type: str) -> None:
    """Check ``kv_offloading_size`` and its backend, where queries turn.

    Args:
        size: GiB, None where nothing is offloaded.

    Raises:
        Unsupported: when the backend is not vLLM's own.
    """
    if size is not None and backend not in (None, "native"):
        raise Unsupported(
            f"kv_offloading_backend must be native where rope_type is {rope_type}, got {backend}: {_OTHER_ENGINES}"
        )
