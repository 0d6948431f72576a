"""Which connectors to other tiers of the KV cache may stand beside ours: those whose names of blocks say the scale.

With scales, what a block holds depends on the scale of its request. Our salt says the scale, and vLLM's hashes have the
salt in them (Decision 21). A connector that names blocks by tokens alone would hand keys of one scale to requests of
another.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import CONNECTOR, CONNECTOR_MODULE, CONNECTOR_WITH_TIERS_MODULE, LMCACHE
from posenc_runtime.vllm_adapter.refusals.shared_caches import IN_MEMORY, OFFLOADING, refuse_missing_package

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig

_BY_TOKENS = "it names blocks by their tokens alone, and keys of one scale would reach requests of another"
_UNSHOWN = "no test shows that its answers are right"
_REASONS = {
    "ExampleConnector": _BY_TOKENS,
    "LMCacheConnectorV1": _BY_TOKENS,
    "NixlConnector": "the engines of prefill and decode would choose a request's scale from different lengths",
}
_WHERE = "kv_transfer_config.kv_connector_extra_config.connectors"


def tiers_of(transfer: Any) -> Sequence[Mapping[str, Any]]:
    """The settings of the connectors beside ours.

    Args:
        transfer: vLLM's ``KVTransferConfig``, or a mapping with its fields; None for no connector.
    """
    said: Mapping[str, Any] = transfer if isinstance(transfer, Mapping) else vars(transfer) if transfer else {}
    found = (said.get("kv_connector_extra_config") or {}).get("connectors", ())
    return found if isinstance(found, Sequence) else ()


def with_tiers(transfer: KVTransferConfig, offloading_gib: float | None) -> KVTransferConfig:
    """A configuration of our connector, with the tiers beside it that a user asks for.

    Args:
        transfer: of our connector, maybe with tiers; or of a connector of vLLM, which becomes a tier.
        offloading_gib: vLLM's ``kv_offloading_size``.
    """
    tiers = [dict(tier) for tier in tiers_of(transfer)]
    made = copy.copy(transfer)
    if transfer.kv_connector in (OFFLOADING, LMCACHE):
        tiers = [_tier(transfer.kv_connector_extra_config, transfer.kv_connector)]
        made.kv_connector, made.kv_role, made.kv_connector_extra_config = CONNECTOR, "kv_both", {}
    if offloading_gib is not None:
        tiers.append(_tier({"cpu_bytes_to_use": offloading_gib * (1 << 30)}))
    if made.kv_connector == CONNECTOR:
        made.kv_connector_module_path = CONNECTOR_WITH_TIERS_MODULE if tiers else CONNECTOR_MODULE
    if tiers:
        made.kv_connector_extra_config = {**made.kv_connector_extra_config, "connectors": tiers}
    return made


def _tier(settings: Mapping[str, Any], name: str = OFFLOADING) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": dict(settings)}


def is_on_cpu() -> bool:
    """Whether engines of this process run on the CPU."""
    from vllm.platforms import current_platform

    found: bool = current_platform.is_cpu()
    return found


def refuse_tiers(transfer: Any) -> None:
    """Check the connectors beside ours.

    Args:
        transfer: as in ``tiers_of``.

    Raises:
        Unsupported: when one was not shown to be right beside scales; the message gives the reason.
    """
    said = transfer if isinstance(transfer, Mapping) else vars(transfer) if transfer else {}
    name, settings = said.get("kv_connector"), said.get("kv_connector_extra_config") or {}
    alone = [_tier(settings, name)] if name in (OFFLOADING, LMCACHE) else []
    for tier in (*tiers_of(transfer), *alone):
        name = tier.get("kv_connector") if isinstance(tier, Mapping) else tier
        if name not in (OFFLOADING, LMCACHE) or tier.get("kv_connector_module_path"):
            raise Unsupported(
                f"{_WHERE} must name {OFFLOADING} or {LMCACHE} of vLLM, got {name!r}: "
                f"{_REASONS.get(str(name), _UNSHOWN)}. Take one of these, or leave it out"
            )
        refuse_missing_package(tier)
        if name == LMCACHE and not is_on_cpu():
            raise Unsupported(
                f"{_WHERE} must not name {LMCACHE} on a GPU: on a GPU its server reads blocks by itself, and does not "
                f"end that before the keys of a request that crosses are turned. Take {OFFLOADING}, or leave it out"
            )
        spec = (tier.get("kv_connector_extra_config") or {}).get("spec_name", IN_MEMORY)
        if spec != IN_MEMORY:
            raise Unsupported(
                f"{_WHERE}: spec_name must be {IN_MEMORY}, got {spec}: {_UNSHOWN} where blocks outlive the engine. "
                "Leave spec_name out"
            )
