"""Connectors beside queries that turn: those that were shown are served, the others refused by name."""

from __future__ import annotations

import types
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import KEYED_CONNECTORS
from posenc_runtime.vllm_adapter.refusals import shared_caches
from posenc_runtime.vllm_adapter.refusals.arguments import refuse_arguments
from posenc_runtime.vllm_adapter.refusals.shared_caches import KEYED, refuse_shared_cache, refuse_unshown_keys


def transfer(name: str, **said: Any) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": "kv_both", **said}


@pytest.mark.parametrize("kind", [dict, lambda said: KVTransferConfig(**said)], ids=["mapping", "of vLLM"])
def test_vllms_offloading_to_memory_is_served(kind: Any) -> None:
    refuse_shared_cache(None, "rerope")
    refuse_shared_cache(kind(transfer("OffloadingConnector")), "rerope")
    refuse_shared_cache(kind(transfer("OffloadingConnector", kv_connector_extra_config={"cpu_bytes_to_use": 1})), "x")


SERVED = {shared_caches.OFFLOADING, *shared_caches.KEYED}
OTHERS = sorted(set(KVConnectorFactory._registry) - {*SERVED, "PosencConnector"})


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_connector_of_vllm_is_refused_with_a_reason(name: str) -> None:
    rule = rf"^kv_transfer_config\.kv_connector must be one of Offload.* rerope, got {name}: .* Leave "
    for is_completed in (True, False):
        with pytest.raises(Unsupported, match=rule):
            refuse_shared_cache(transfer(name), "rerope", is_completed=is_completed)


@pytest.mark.parametrize("name", sorted(shared_caches._REASONS))
def test_a_connector_with_a_reason_of_its_own_is_one_of_vllms(name: str) -> None:
    assert name in OTHERS
    with pytest.raises(Unsupported, match=r"by model and tokens alone|is NixlConnector by another name"):
        refuse_shared_cache(KVTransferConfig(**transfer(name)), "rerope")


@pytest.mark.parametrize("name", shared_caches.KEYED)
def test_a_connector_to_other_engines_is_served_where_its_class_is_ours(name: str) -> None:
    assert name in KVConnectorFactory._registry
    ours = transfer(name, kv_connector_module_path=KEYED_CONNECTORS)
    for is_completed in (True, False):
        refuse_shared_cache(ours, "rerope", is_completed=is_completed)
        refuse_shared_cache(KVTransferConfig(**ours), "rerope", is_completed=is_completed)
    refuse_shared_cache(transfer(name), "rerope", is_completed=False)  # ours is chosen then
    with pytest.raises(Unsupported, match=f"got {name}: other engines read its blocks"):
        refuse_shared_cache(transfer(name), "rerope")
    with pytest.raises(Unsupported, match=f"got {name} of mine: no test"):
        refuse_shared_cache(transfer(name, kv_connector_module_path="mine"), "rerope", is_completed=False)


@pytest.mark.parametrize(
    ("setting", "value", "rule"),
    [
        ("enforce_handshake_compat", False, r"must be true .* rerope, got False: without the check, .* Leave it out"),
        ("bidirectional_kv_xfer", True, r"must be false .* rerope, got True: no test shows"),
    ],
)
def test_nixl_compares_deployments_and_moves_keys_one_way(setting: str, value: bool, rule: str) -> None:
    for given in (not value, value):
        said = transfer(
            "NixlConnector",
            kv_connector_extra_config={setting: given},
            kv_connector_module_path=KEYED_CONNECTORS,
        )
        if given is value:
            with pytest.raises(Unsupported, match=rf"^kv_transfer_config\.kv_connector_extra_config\.{setting} {rule}"):
                refuse_shared_cache(said, "rerope")
        else:
            refuse_shared_cache(said, "rerope")


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (transfer("OffloadingConnector", kv_connector_module_path="mine"), "got OffloadingConnector of mine: no test"),
        (
            transfer("OffloadingConnector", kv_connector_extra_config={"spec_name": "TieringOffloadingSpec"}),
            "spec_name must be CPUOffloadingSpec .*, got TieringOffloadingSpec: tiers .* Leave spec_name out",
        ),
    ],
    ids=["module", "tiers"],
)
def test_offloading_elsewhere_than_to_the_engines_memory_is_refused(said: dict[str, Any], rule: str) -> None:
    with pytest.raises(Unsupported, match=rule):
        refuse_shared_cache(said, "rerope")


@pytest.mark.parametrize("name", KEYED)
def test_a_cache_that_others_share_is_refused_with_what_no_test_has_shown(name: str) -> None:
    unshown = {"a float8 cache": False, "a model with recurrent layers": True}
    refuse_unshown_keys(transfer(name), dict.fromkeys(unshown, False), "rerope")
    refuse_unshown_keys(transfer("OffloadingConnector"), unshown, "rerope")
    with pytest.raises(Unsupported, match=rf"{name} is not served where rope_type is rerope with a model with recurr"):
        refuse_unshown_keys(transfer(name), unshown, "rerope")


def engine_args(**changed: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        **{
            "additional_config": {"posenc": {"rope_type": "rerope"}},
            "kv_transfer_config": None,
            "kv_offloading_size": None,
            "kv_offloading_backend": "native",
            "runner": "auto",
            "prefill_context_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "enable_dbo": False,
            "ubatch_size": 0,
            "enable_elastic_ep": False,
            "speculative_config": None,
            "diffusion_config": None,
            **changed,
        }
    )


def test_arguments_are_checked_before_vllm_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    refuse_arguments(engine_args(kv_offloading_size=4.0, speculative_config={"method": "ngram"}))
    with pytest.raises(Unsupported, match=r"kv_offloading_backend must be native where .* rerope, got lmcache"):
        refuse_arguments(engine_args(kv_offloading_size=4.0, kv_offloading_backend="lmcache"))
    refuse_arguments(engine_args(kv_transfer_config=transfer("NixlConnector")))
    with pytest.raises(Unsupported, match="got MooncakeConnector: other engines read its blocks"):
        refuse_arguments(engine_args(kv_transfer_config=transfer("MooncakeConnector")))
    with pytest.raises(Unsupported, match=r"^speculative_config must be left out .* is NixlConnector: no test"):
        refuse_arguments(
            engine_args(kv_transfer_config=transfer("NixlConnector"), speculative_config={"method": "ngram"})
        )


@pytest.mark.parametrize(("name", "package"), [("LMCacheMPConnector", "lmcache"), ("NixlConnector", "nixl")])
def test_a_connector_whose_package_is_missing_is_refused_with_the_way_to_it(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda asked: None if asked == package else object())
    rule = rf"^kv_transfer_config\.kv_connector {name} needs the package {package}, .*: pip install .*{package}"
    for kind in (dict, lambda said: KVTransferConfig(**said)):
        with pytest.raises(Unsupported, match=rule):
            refuse_arguments(engine_args(kv_transfer_config=kind(transfer(name))))
