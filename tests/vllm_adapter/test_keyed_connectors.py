"""Connectors to caches that other engines read: how queries turn is a part of what they key by."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole, supports_hma
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector as StockNixlConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlHandshakePayload

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import keyed_connectors, releases
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import KEYED_CONNECTORS, LMCACHE, NIXL

REROPE = Deployment(rope_type="rerope", original_max_position_embeddings=256, max_model_len=4096)
WIDER = dataclasses.replace(REROPE, parameters={"window": 192})
ROLES = [KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER]


def config(deployment: Deployment | None, connector: str, **extra: Any) -> Any:
    transfer = KVTransferConfig(
        kv_connector=connector,
        kv_connector_module_path=KEYED_CONNECTORS,
        kv_role="kv_both",
        kv_connector_extra_config=extra,
    )
    return types.SimpleNamespace(
        additional_config={} if deployment is None else {"posenc": deployment.to_mapping()},
        kv_transfer_config=transfer,
        cache_config=types.SimpleNamespace(block_size=32),
        model_config=types.SimpleNamespace(model="a/model"),
        compilation_config=types.SimpleNamespace(static_forward_context={"experts": object()}),
    )


class Adapter:
    """An adapter as LMCache has it, to its server."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def _create_key(self, token_ids: list[int], start: int, end: int, request_id: str) -> Any:
        return types.SimpleNamespace(model_name=self.model_name)


class OtherAdapter(Adapter):
    """An adapter that names its keys by what it was made with."""

    def __init__(self, model_name: str) -> None:
        super().__init__(model_name)
        self._named = model_name

    def _create_key(self, token_ids: list[int], start: int, end: int, request_id: str) -> Any:
        return types.SimpleNamespace(model_name=self._named)


class StockLMCache(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """LMCache's connector, as far as we touch it."""

    adapter: type[Adapter] = Adapter

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        adapter = self.adapter(vllm_config.model_config.model)
        setattr(self, "scheduler_adapter" if role == KVConnectorRole.SCHEDULER else "worker_adapter", adapter)


@pytest.fixture
def lmcache(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[StockLMCache]]:
    stock = type("Stock", (StockLMCache,), {"__abstractmethods__": frozenset()})
    stock.__abstractmethods__ = frozenset()
    monkeypatch.setitem(KVConnectorFactory._registry, LMCACHE, lambda: stock)
    keyed_connectors._lmcache.cache_clear()
    yield stock
    keyed_connectors._lmcache.cache_clear()


def made(deployment: Deployment | None, role: Any, **extra: Any) -> Any:
    vllm_config = config(deployment, LMCACHE, **extra)
    cls = KVConnectorFactory.get_connector_class(vllm_config.kv_transfer_config)
    cls.__abstractmethods__ = frozenset()
    return cls(vllm_config, role, None)


def named(connector: Any) -> str:
    adapter = getattr(connector, "scheduler_adapter", None) or connector.worker_adapter
    return str(adapter._create_key([], 0, 0, "r").model_name)


def test_lmcache_has_keys_of_each_deployment_under_a_name_of_their_own(lmcache: type[StockLMCache]) -> None:
    names = [{named(made(each, role)) for role in ROLES} for each in (REROPE, WIDER)]
    assert [len(each) for each in names] == [1, 1]  # scheduler and worker agree
    assert names[0].isdisjoint(names[1]) and "a/model" not in names[0] | names[1]
    assert all(name.startswith("a/model##posenc-") and "@" not in name for each in names for name in each)
    longer = dataclasses.replace(REROPE, max_model_len=8192, parameters={"window": 128, "page": 32})
    assert {named(made(longer, role)) for role in ROLES} == names[0]


def test_lmcaches_connector_stays_its_own_in_everything_else(lmcache: type[StockLMCache]) -> None:
    found = KVConnectorFactory.get_connector_class(config(REROPE, LMCACHE).kv_transfer_config)
    assert issubclass(found, lmcache) and supports_hma(found) and found.__name__ == LMCACHE


@pytest.mark.parametrize("role", ROLES)
def test_an_lmcache_that_names_its_keys_in_another_way_is_refused(lmcache: type[StockLMCache], role: Any) -> None:
    lmcache.adapter = OtherAdapter
    with pytest.raises(Unsupported, match=r"must name what it stores .* names it by a/model: install LMCache"):
        made(REROPE, role)
    lmcache.adapter = type("NoKeys", (Adapter,), {"_create_key": None})
    with pytest.raises(Unsupported, match=r"by no key that we know .* install LMCache"):
        made(REROPE, role)


def test_without_a_deployment_no_connector_of_these_is_made(lmcache: type[StockLMCache]) -> None:
    with pytest.raises(ValueError, match=r"needs additional_config\.posenc, got none: leave"):
        made(None, ROLES[0])


@pytest.mark.parametrize("connector", [LMCACHE, NIXL])
def test_layers_that_turn_for_other_pages_than_the_fingerprint_says_are_refused(
    connector: str, lmcache: type[StockLMCache]
) -> None:
    """A default page is made for the size of blocks; vLLM may change that once the model is loaded."""
    vllm_config = config(REROPE, connector)
    layers = vllm_config.compilation_config.static_forward_context
    cls: Any = KVConnectorFactory.get_connector_class(vllm_config.kv_transfer_config)
    layers["attention"] = types.SimpleNamespace(posenc_pages=REROPE.pages(28))
    with pytest.raises(Unsupported, match=r"^scaling\.page must be given .* attention .* of 28 tokens: .* page of 32"):
        cls(vllm_config, KVConnectorRole.WORKER, None)
    if connector == LMCACHE:
        layers["attention"] = types.SimpleNamespace(posenc_pages=REROPE.pages(32))
        cls.__abstractmethods__ = frozenset()
        cls(vllm_config, KVConnectorRole.WORKER, None)


def test_a_page_that_does_not_fit_the_blocks_is_refused_by_the_name_of_its_setting() -> None:
    vllm_config = config(dataclasses.replace(REROPE, parameters={"page": 32}), NIXL)
    vllm_config.cache_config.block_size = 48
    cls: Any = KVConnectorFactory.get_connector_class(vllm_config.kv_transfer_config)
    with pytest.raises(Unsupported, match=r"^scaling\.page must be a multiple of .*48.*, got 32"):
        cls(vllm_config, KVConnectorRole.SCHEDULER, None)


def handshake(deployment: Deployment, monkeypatch: pytest.MonkeyPatch, stocks: str = "of stock") -> Any:
    """What a worker offers in a handshake, which is also what it asks for."""

    def register(self: Any, kv_caches: Any) -> None:
        self.connector_worker.compat_hash = stocks
        self.connector_worker.xfer_handshake_metadata = NixlHandshakePayload(stocks, b"agent")

    monkeypatch.setattr(releases, "verify_nixl", lambda: None)  # it would look into the class that is replaced here
    monkeypatch.setattr(StockNixlConnector, "__init__", lambda *_: None)
    monkeypatch.setattr(StockNixlConnector, "register_kv_caches", register)
    vllm_config = config(deployment, NIXL)
    cls: Any = KVConnectorFactory.get_connector_class(vllm_config.kv_transfer_config)
    connector = cls(vllm_config, KVConnectorRole.WORKER, None)
    connector.connector_worker = worker = types.SimpleNamespace(compat_hash=None, xfer_handshake_metadata=None)
    connector.register_kv_caches({})
    assert worker.xfer_handshake_metadata.agent_metadata_bytes == b"agent"
    assert worker.xfer_handshake_metadata.compatibility_hash == worker.compat_hash
    return worker.compat_hash


def test_nixl_shakes_hands_with_equal_deployments_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = handshake(REROPE, monkeypatch)
    assert ours == handshake(dataclasses.replace(REROPE, max_model_len=8192), monkeypatch)
    assert len({ours, handshake(WIDER, monkeypatch), "of stock"}) == 3
    assert ours != handshake(REROPE, monkeypatch, "of another model")


def test_a_nixl_that_compares_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for stocks in ("", None):
        with pytest.raises(Unsupported, match="must compare a hash of its settings in a handshake"):
            handshake(REROPE, monkeypatch, stocks)  # type: ignore[arg-type]


def test_a_nixl_that_does_not_compare_is_refused() -> None:
    with pytest.raises(Unsupported, match="enforce_handshake_compat must be true"):
        keyed_connectors.NixlConnector(config(REROPE, NIXL, enforce_handshake_compat=False), ROLES[1], None)  # type: ignore[arg-type]


def test_nixls_connector_is_vllms_by_the_same_name() -> None:
    found = KVConnectorFactory.get_connector_class(config(REROPE, NIXL).kv_transfer_config)
    assert issubclass(found, StockNixlConnector) and supports_hma(found) and found.__name__ == NIXL


def test_the_module_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'MooncakeConnector'"):
        _ = keyed_connectors.MooncakeConnector
