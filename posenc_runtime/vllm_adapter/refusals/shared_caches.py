"""Which KV connectors an engine may have where queries turn: those whose blocks no other deployment takes for its own.

Keys and values of tokens past the trained length depend on the method, its window and its page. Where a cache outlives
its engine or is shared by several, a deployment with other ones would find its tokens there, and read foreign blocks as
its own. What such caches name blocks by says nothing of the method: the model's name, tokens, data type and layout. For
some of them ``keyed_connectors`` adds the method to it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import KEYED_CONNECTORS, LMCACHE, NIXL

OFFLOADING = "OffloadingConnector"
IN_MEMORY = "CPUOffloadingSpec"
KEYED = (LMCACHE, NIXL)

# The package that a connector imports, and how to install it.
_PACKAGES = {
    LMCACHE: ("lmcache", "pip install --no-deps lmcache==0.5.6, and what it imports (docs/operations.md)"),
    NIXL: ("nixl", "pip install nixl"),
}

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
    "MoRIIOConnector": _OTHER_ENGINES,
    "MooncakeConnector": _OTHER_ENGINES,
    "MooncakeStoreConnector": _OTHER_ENGINES,
    "NixlPullConnector": f"it is {NIXL} by another name, and vLLM sets more up for that one",
}
# Settings of NIXL: what each must be, and why.
_OF_NIXL = {
    "enforce_handshake_compat": (
        True,
        "without the check, an engine would read keys that another rope_type, window or page has made",
    ),
    "bidirectional_kv_xfer": (False, _UNSHOWN),
}


def needs_keys(name: str | None) -> bool:
    """Whether a connector of vLLM, by its name, has a class of ours that keys what it shares."""
    return name in KEYED


def fields_of(transfer: Any) -> Mapping[str, Any]:
    """The fields of vLLM's ``KVTransferConfig``, or of a mapping in its place; none where it is None."""
    if isinstance(transfer, Mapping):
        return transfer
    return vars(transfer) if transfer else {}


def refuse_shared_cache(transfer: Any, rope_type: str, *, is_completed: bool = True) -> None:
    """Check ``kv_transfer_config`` of an engine whose queries turn.

    Args:
        transfer: vLLM's ``KVTransferConfig``, or a mapping with its fields; None for no connector.
        is_completed: whether we have had the chance to choose the connector's class.

    Raises:
        Unsupported: unless it is vLLM's own offloading to memory of the engine, or a connector that is keyed by how
            queries turn; the message gives the reason.
    """
    if transfer is None:
        return
    said = fields_of(transfer)
    name, module = said.get("kv_connector"), said.get("kv_connector_module_path")
    if name is None:
        return  # vLLM makes no connector of it
    extra = said.get("kv_connector_extra_config") or {}
    if needs_keys(name) and (module == KEYED_CONNECTORS or (not module and not is_completed)):
        if name == NIXL:
            refuse_settings_of_nixl(extra, f"where rope_type is {rope_type}")
        return
    if name != OFFLOADING or module:
        reason = _UNSHOWN if module else _REASONS.get(str(name), _OTHER_ENGINES if needs_keys(name) else _UNSHOWN)
        raise Unsupported(
            f"kv_transfer_config.kv_connector must be one of {OFFLOADING}, {', '.join(KEYED)} of vLLM where rope_type "
            f"is {rope_type}, got {f'{name} of {module}' if module else name}: {reason}. Leave kv_transfer_config out, "
            "or take one of these"
        )
    spec = extra.get("spec_name", IN_MEMORY)
    if spec != IN_MEMORY:
        raise Unsupported(
            f"kv_transfer_config.kv_connector_extra_config.spec_name must be {IN_MEMORY} where rope_type is "
            f"{rope_type}, got {spec}: tiers below the engine's memory outlive the engine, or several engines share "
            "them. They name blocks by model and tokens alone. Leave spec_name out"
        )


def refuse_settings_of_nixl(extra: Mapping[str, Any], where: str) -> None:
    """Check the ``kv_connector_extra_config`` of NIXL's connector.

    Args:
        where: these rules hold, for the message.

    Raises:
        Unsupported: when a setting would let other keys pass, or no test shows it.
    """
    for name, (must_be, reason) in _OF_NIXL.items():
        if (value := extra.get(name, must_be)) is not must_be:
            raise Unsupported(
                f"kv_transfer_config.kv_connector_extra_config.{name} must be {str(must_be).lower()} {where}, got "
                f"{value}: {reason}. Leave it out"
            )


def refuse_missing_package(transfer: Any) -> None:
    """Check that the package of a connector is installed. vLLM says only which import failed, and of NIXL in a worker.

    Args:
        transfer: as in ``refuse_shared_cache``.

    Raises:
        Unsupported: when it is not; the message says how to install it.
    """
    name = _name_of(transfer)
    if name in _PACKAGES:
        package, how = _PACKAGES[name]
        if importlib.util.find_spec(package) is None:
            raise Unsupported(
                f"kv_transfer_config.kv_connector {name} needs the package {package}, which is not installed: {how}"
            )


def refuse_drafts_from_others(transfer: Any, drafts: bool, rope_type: str) -> None:
    """Check that an engine whose cache others share drafts no tokens.

    Args:
        transfer: as in ``refuse_shared_cache``.
        drafts: whether there is a ``speculative_config``.

    Raises:
        Unsupported: when it does.
    """
    name = _name_of(transfer)
    if drafts and needs_keys(name):
        raise Unsupported(
            f"speculative_config must be left out where rope_type is {rope_type} and kv_transfer_config.kv_connector "
            f"is {name}: {_UNSHOWN}"
        )


def refuse_unshown_keys(transfer: Any, unshown: Mapping[str, bool], rope_type: str) -> None:
    """Check that the cache that others share is one that a test has shown.

    Args:
        transfer: as in ``refuse_shared_cache``.
        unshown: whether the engine has what no test has shown, by the words of a refusal.

    Raises:
        Unsupported: when it has.
    """
    name = _name_of(transfer)
    for what, is_there in unshown.items():
        if is_there and needs_keys(name):
            raise Unsupported(
                f"kv_transfer_config.kv_connector {name} is not served where rope_type is {rope_type} with {what}: "
                f"{_UNSHOWN}. Leave one of the two out"
            )


def _name_of(transfer: Any) -> str | None:
    name = transfer.get("kv_connector") if isinstance(transfer, Mapping) else getattr(transfer, "kv_connector", None)
    return None if name is None else str(name)


def refuse_shared_offloading(size: float | None, backend: str | None, rope_type: str) -> None:
    """Check ``kv_offloading_size`` and its backend, where queries turn.

    Args:
        size: GiB, None where nothing is offloaded.

    Raises:
        Unsupported: when the backend is not vLLM's own.
    """
    if size is not None and backend not in (None, "native"):
        raise Unsupported(
            f"kv_offloading_backend must be native where rope_type is {rope_type}, got {backend}: {_OTHER_ENGINES}. "
            f"For LMCache's server, give {LMCACHE} as kv_transfer_config.kv_connector"
        )
