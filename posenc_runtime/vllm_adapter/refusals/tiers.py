"""Which connectors to other tiers of the KV cache may stand beside ours: those whose names of blocks say the scale.

With scales, what a block holds depends on the scale of its request. Our salt says the scale, and vLLM's hashes have the
salt in them (Decision 21). A connector that names blocks by tokens alone would hand keys of one scale to requests of
another. NIXL names no blocks: a router tells an engine which request's blocks to take, and at which scale. Decision 78.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import KEYED_CONNECTORS, LMCACHE, NIXL
from posenc_runtime.vllm_adapter.refusals.shared_caches import (
    IN_MEMORY,
    OFFLOADING,
    fields_of,
    refuse_missing_package,
    refuse_settings_of_nixl,
)

TIERS = (OFFLOADING, LMCACHE, NIXL)

_BY_TOKENS = "it names blocks by their tokens alone, and keys of one scale would reach requests of another"
_UNSHOWN = "no test shows that its answers are right"
_REASONS = {
    "ExampleConnector": _BY_TOKENS,
    "LMCacheConnectorV1": _BY_TOKENS,
}
_WHERE = "kv_transfer_config.kv_connector_extra_config.connectors"


def tiers_of(transfer: Any) -> Sequence[Mapping[str, Any]]:
    """The settings of the connectors beside ours.

    Args:
        transfer: vLLM's ``KVTransferConfig``, or a mapping with its fields; None for no connector.
    """
    found = (fields_of(transfer).get("kv_connector_extra_config") or {}).get("connectors", ())
    return found if isinstance(found, Sequence) else ()


def hands_over(transfer: Any) -> bool:
    """Whether an engine hands keys of its requests to other engines, or takes theirs.

    Args:
        transfer: as in ``tiers_of``.
    """
    return NIXL in [each.get("kv_connector") for each in (fields_of(transfer), *tiers_of(transfer))]


def refuse_tiers(transfer: Any) -> None:
    """Check the connectors beside ours.

    Args:
        transfer: as in ``tiers_of``.

    Raises:
        Unsupported: when one was not shown to be right beside scales; the message gives the reason.
    """
    from vllm.platforms import current_platform

    said = fields_of(transfer)
    tiers = [*tiers_of(transfer), *([said] if said.get("kv_connector") in TIERS else [])]
    for tier in tiers:
        name = tier.get("kv_connector") if isinstance(tier, Mapping) else tier
        module = tier.get("kv_connector_module_path") if isinstance(tier, Mapping) else None
        if name not in TIERS or module not in (None, KEYED_CONNECTORS if name == NIXL else None):
            raise Unsupported(
                f"{_WHERE} must name {', '.join(TIERS[:-1])} or {TIERS[-1]} of vLLM, got {name!r}: "
                f"{_REASONS.get(str(name), _UNSHOWN)}. Take one of these, or leave it out"
            )
        refuse_missing_package(tier)
        if name == NIXL:
            _refuse_nixl(tier, len(tiers), current_platform.device_type)
        if name == LMCACHE and not current_platform.is_cpu():
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


def _refuse_nixl(tier: Mapping[str, Any], num_tiers: int, device: str) -> None:
    refuse_settings_of_nixl(tier.get("kv_connector_extra_config") or {}, "where requests are scaled")
    if num_tiers > 1:
        raise Unsupported(
            f"{_WHERE} must have no other connector beside {NIXL}: {_UNSHOWN} where blocks are offloaded as well. "
            "Leave one of them out"
        )
    if (buffer := tier.get("kv_buffer_device") or device) != device:
        raise Unsupported(
            f"kv_buffer_device of {NIXL} must be {device}, got {buffer}: {_UNSHOWN} where blocks are copied to another "
            "memory first. Leave it out"
        )
