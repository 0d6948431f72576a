"""vLLM's connectors to caches that other engines read, keyed by what this engine's keys and values depend on.

Where queries turn, keys and values of tokens past the trained length depend on the method and its distances. Where
requests are scaled, keys depend on the method. vLLM's connectors name what they share by the model, the tokens and the
layout. So an engine with another window or method, or stock vLLM, would take such keys for its own. The classes here
add the deployment's fingerprint to that name, and are vLLM's own in everything else. vLLM imports them by their names.
Decisions 73 and 78.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector as StockNixlConnector

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.contract.active import KEY, deployment_of
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import LMCACHE
from posenc_runtime.vllm_adapter.refusals.shared_caches import refuse_shared_cache
from posenc_runtime.vllm_adapter.refusals.turning_queries import pages_of

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class NixlConnector(StockNixlConnector):
    """vLLM's ``NixlConnector``: two engines with different fingerprints refuse each other when they shake hands."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        releases.verify_nixl()
        self._fingerprint = _fingerprint(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        """Register the caches, then key what this worker offers in a handshake, and what it asks of the other side.

        Raises:
            Unsupported: when vLLM compares something else than the hash that we know.
        """
        super().register_kv_caches(kv_caches)
        worker = self.connector_worker
        assert worker is not None
        offered = worker.xfer_handshake_metadata
        if offered is None or not worker.compat_hash or offered.compatibility_hash != worker.compat_hash:
            raise Unsupported(
                f"{StockNixlConnector.__name__} must compare a hash of its settings in a handshake, but this vLLM does "
                "it in another way: leave kv_transfer_config out"
            )
        worker.compat_hash = keyed_hash(worker.compat_hash, self._fingerprint)
        worker.xfer_handshake_metadata = dataclasses.replace(offered, compatibility_hash=worker.compat_hash)


class KeyedByModelName:
    """Mixed into LMCache's connector: its cache has this deployment's keys under a model's name of their own.

    LMCache names a chunk by a hash of its tokens, the model, the worker's part of it, and the salt of the request.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        fingerprint = _fingerprint(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
        adapter: Any = getattr(self, "scheduler_adapter" if role == KVConnectorRole.SCHEDULER else "worker_adapter")
        _name_keys(adapter, fingerprint)


def keyed_hash(stocks: str, fingerprint: str) -> str:
    """What engines compare in a handshake: vLLM's hash, and how queries turn or keys are scaled."""
    return hashlib.sha256(f"{stocks} {fingerprint}".encode()).hexdigest()


def keyed_name(model: str, fingerprint: str) -> str:
    """The name of a model in a cache. LMCache marks other layouts in this way; no hub has such names."""
    return f"{model}##posenc-{fingerprint}"


def _name_keys(adapter: Any, fingerprint: str) -> None:
    """Let an adapter of LMCache, which has not named any chunk yet, add the fingerprint to the model's name.

    Raises:
        Unsupported: when this LMCache makes its keys in another way.
    """
    name = ""
    try:
        name = adapter.model_name = keyed_name(adapter.model_name, fingerprint)
        found = adapter._create_key([], 0, 0, "").model_name
    except (AttributeError, TypeError) as error:
        found = f"no key that we know ({error})"
    if found != name:
        raise Unsupported(
            f"{LMCACHE} must name what it stores by its adapter's model_name, which posenc sets to {name!r}, but this "
            f"LMCache names it by {found}: install LMCache 0.5.6, or leave kv_transfer_config out"
        )


def _fingerprint(vllm_config: VllmConfig) -> str:
    """How this engine's queries turn, or how its keys are scaled.

    Raises:
        ValueError: when there is no deployment.
        Unsupported: when the connector's settings would let another engine's keys pass, when a page is no multiple of
            a block, or when the layers of this worker turn their queries for other pages than the deployment's.
    """
    deployment = deployment_of(vllm_config)
    if deployment is None:
        raise ValueError(
            f"a connector of {__name__} needs additional_config.{KEY}, got none: leave kv_connector_module_path out"
        )
    if not deployment.turns_queries:
        return deployment.fingerprint
    refuse_shared_cache(vllm_config.kv_transfer_config, deployment.rope_type)
    pages = pages_of(deployment, vllm_config.cache_config.block_size)
    for name, layer in vllm_config.compilation_config.static_forward_context.items():
        if (found := getattr(layer, "posenc_pages", pages)) != pages:
            raise Unsupported(
                f"scaling.page must be given where kv_transfer_config.kv_connector is "
                f"{vllm_config.kv_transfer_config.kv_connector}, because vLLM has changed the size of its blocks since "
                f"{name} was told to turn its queries for pages of {found.page} tokens: give a page of {pages.page}"
            )
    return pages.fingerprint


@functools.cache
def _lmcache() -> type[Any]:
    """LMCache's connector with our keys. vLLM knows where it is; its package need not be installed for the others."""
    stock = KVConnectorFactory.get_connector_class_by_name(LMCACHE)
    return type(LMCACHE, (KeyedByModelName, stock), {"__module__": __name__, "__doc__": KeyedByModelName.__doc__})


def __getattr__(name: str) -> Any:
    if name == LMCACHE:
        return _lmcache()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
