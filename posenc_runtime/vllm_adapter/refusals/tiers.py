"""Which connectors to other tiers of the KV cache may stand beside ours: those whose names of blocks say the scale.

With scales, what a block holds depends on the scale of its request. Our salt says the scale, and vLLM's hashes have the
salt in them (Decision 21). A connector that names blocks by tokens alone would hand keys of one scale to requests of
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import LMCACHE
from posenc_runtime.vllm_adapter.refusals.shared_caches import (
    IN_MEMORY,
    OFFLOADING,
    fields_of,
    refuse_missing_package,
)

TIERS = (OFFLOADING, LMCACHE)

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
    found = (fields_of(transfer).get("kv_connector_extra_config") or {}).get("connectors", ())
    return found if isinstance(found, Sequence) else ()


def refuse_tiers(transfer: Any) -> None:
    """Check the connectors beside ours.

    Args:
        transfer: as in ``tiers_of``.

    Raises:
        Unsupported: when one was not shown to be right beside scales; the message gives the reason.
    """
    from vllm.platforms import current_platform

    said = fields_of(transfer)
    alone = [said] if said.get("kv_connector") in TIERS else []
    for tier in (*tiers_of(transfer), *alone):
        name = tier.get("kv_connector") if isinstance(tier, Mapping) else tier
        if name not in TIERS or tier.get("kv_connector_module_path"):
            raise Unsupported(
                f"{_WHERE} must name {OFFLOADING} or {LMCACHE} of vLLM, got {name!r}: "
                f"{_REASONS.get(str(name), _UNSHOWN)}. Take one of these, or leave it out"
            )
        refuse_missing_package(tier)
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
