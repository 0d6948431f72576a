"""Puts the tiers of the KV cache that a user asks for beside our connector, in vLLM's configuration of connectors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from posenc_runtime.vllm_adapter.contract.names import (
    CONNECTOR,
    CONNECTOR_MODULE,
    CONNECTOR_WITH_TIERS_MODULE,
    KEYED_CONNECTORS,
    NIXL,
)
from posenc_runtime.vllm_adapter.refusals.shared_caches import OFFLOADING
from posenc_runtime.vllm_adapter.refusals.tiers import TIERS, tiers_of

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig


def with_tiers(transfer: KVTransferConfig, offloading_gib: float | None) -> KVTransferConfig:
    """A configuration of our connector, with the tiers beside it that a user asks for.

    Args:
        transfer: of our connector, maybe with tiers; or of a connector of vLLM, which becomes a tier.
        offloading_gib: vLLM's ``kv_offloading_size``.
    """
    tiers = [dict(tier) for tier in tiers_of(transfer)]
    made = copy.copy(transfer)
    if transfer.kv_connector in TIERS:
        own = _tier(transfer.kv_connector_extra_config, transfer.kv_connector)
        tiers = [{**own, **({"kv_role": transfer.kv_role} if transfer.kv_connector == NIXL else {})}]
        made.kv_connector, made.kv_role, made.kv_connector_extra_config = CONNECTOR, "kv_both", {}
    if offloading_gib is not None:
        tiers.append(_tier({"cpu_bytes_to_use": offloading_gib * (1 << 30)}))
    for tier in tiers:
        if tier.get("kv_connector") == NIXL:
            tier["kv_connector_module_path"] = KEYED_CONNECTORS
    if made.kv_connector == CONNECTOR:
        made.kv_connector_module_path = CONNECTOR_WITH_TIERS_MODULE if tiers else CONNECTOR_MODULE
    if tiers:
        made.kv_connector_extra_config = {**made.kv_connector_extra_config, "connectors": tiers}
    return made


def _tier(settings: Mapping[str, Any], name: str = OFFLOADING) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": dict(settings)}
