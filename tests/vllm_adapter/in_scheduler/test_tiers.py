"""What tiers see of requests and steps, and which connectors may be tiers."""

from __future__ import annotations

import types
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import RequestStatus

from posenc_runtime.kv.budget import Speed
from posenc_runtime.vllm_adapter.connector_with_tiers import PosencConnector
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import CONNECTOR
from posenc_runtime.vllm_adapter.in_scheduler.tiers import Tiers
from posenc_runtime.vllm_adapter.refusals.tiers import hands_over, refuse_tiers, tiers_of
from posenc_runtime.vllm_adapter.settings.arguments.tiers import with_tiers


def request(name: str, **changed: Any) -> Any:
    of_request = {
        **{"request_id": name, "cache_salt": "tenant", "num_prompt_tokens": 6, "num_computed_tokens": 8},
        **{"all_token_ids": list(range(9)), "block_hashes": [b"a", b"b"], "num_tokens": 9},
        **{"status": RequestStatus.RUNNING, **changed},
    }
    return types.SimpleNamespace(**of_request)


def step(*names: str) -> SchedulerOutput:
    output = SchedulerOutput.make_empty()
    cached = output.scheduled_cached_reqs
    for name in names:
        cached.req_ids.append(name)
        cached.new_block_ids.append(([len(cached.req_ids)],))
        cached.num_computed_tokens.append(8)
        cached.num_output_tokens.append(2)
        output.num_scheduled_tokens[name] = 1
    return output


def test_a_request_that_crosses_stands_still_for_tiers_and_goes_on_for_vllm() -> None:
    tiers, own = Tiers(), request("crossing")
    seen = tiers.on_new_request(own)
    tiers.leave(own)
    own.cache_salt, own.block_hashes, own.num_tokens, own.num_computed_tokens = "other", [b"c"], 20, 19
    assert (seen.cache_salt, seen.block_hashes, seen.num_tokens, seen.num_computed_tokens) == (
        "tenant",
        [b"a", b"b"],
        8,
        8,
    )
    assert (seen.request_id, seen.status) == ("crossing", RequestStatus.RUNNING)
    own.status = RequestStatus.FINISHED_STOPPED
    assert seen.status == RequestStatus.FINISHED_ABORTED  # of which no more is stored


def test_a_step_has_no_part_of_requests_that_stand_still_and_ends_their_stores_once() -> None:
    tiers, own, other = Tiers(), request("crossing"), request("other")
    for each in (own, other):
        tiers.on_new_request(each)
    tiers.leave(own)
    seen = tiers.step(step("other", "crossing"), written=[])
    assert seen.scheduled_cached_reqs.req_ids == ["other"]
    assert seen.scheduled_cached_reqs.new_block_ids == [([1],)]
    assert seen.num_scheduled_tokens == {"other": 1}
    assert seen.preempted_req_ids == {"crossing"}
    assert tiers.step(step("other", "crossing"), written=[]).preempted_req_ids == set()


def test_blocks_that_moves_write_are_blocks_that_somebody_overwrites() -> None:
    tiers = Tiers()
    copies = tiers.step(step(), written=[5, 7]).kv_cache_block_copies
    assert copies is not None and [copy.dst_block_id for copy in copies] == [5, 7]


@pytest.mark.parametrize(
    "given",
    [
        {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 2**30}},
        {
            "kv_connector": CONNECTOR,
            "kv_connector_extra_config": {
                "connectors": [
                    {
                        **{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"},
                        **{"kv_connector_extra_config": {"cpu_bytes_to_use": 2**30}},
                    }
                ]
            },
        },
    ],
    ids=["vLLM's own alone", "beside ours"],
)
def test_offloading_becomes_a_tier_beside_our_connector(given: dict[str, Any]) -> None:
    transfer = KVTransferConfig(**given, kv_role="kv_both")
    refuse_tiers(transfer)
    made = with_tiers(transfer, None)
    assert made.kv_connector == CONNECTOR and str(made.kv_connector_module_path).endswith("connector_with_tiers")
    [tier] = tiers_of(made)
    assert tier["kv_connector"] == "OffloadingConnector"
    assert tier["kv_connector_extra_config"] == {"cpu_bytes_to_use": 2**30}


def test_vllms_size_of_offloading_is_a_tier_too_and_none_without_it() -> None:
    ours = KVTransferConfig(kv_connector=CONNECTOR, kv_role="kv_both")
    assert tiers_of(with_tiers(ours, 0.5))[0]["kv_connector_extra_config"] == {"cpu_bytes_to_use": 2**29}
    assert str(with_tiers(ours, None).kv_connector_module_path).endswith(".connector")


@pytest.mark.parametrize(
    ("tier", "reason"),
    [
        ({"kv_connector": "ExampleConnector"}, "it names blocks by their tokens alone"),
        ({"kv_connector": "LMCacheConnectorV1"}, "it names blocks by their tokens alone"),
        ({"kv_connector": "SimpleCPUOffloadConnector"}, "no test shows"),
        ({"kv_connector": "OffloadingConnector", "kv_connector_module_path": "mine"}, "no test shows"),
        (
            {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"spec_name": "Disk"}},
            "spec_name must be CPUOffloadingSpec, got Disk",
        ),
    ],
    ids=lambda value: value["kv_connector"] if isinstance(value, dict) else "",
)
def test_another_tier_is_refused_with_the_reason(tier: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        refuse_tiers({"kv_connector": CONNECTOR, "kv_connector_extra_config": {"connectors": [tier]}})


class Tier:
    """A connector that has 96 tokens of every request, or waits for what another engine says of them."""

    def __init__(self, told: KVConnectorHandshakeMetadata | None = None) -> None:
        self.told, self.heard = told, []  # type: ignore[var-annotated]

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self.told

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        self.heard.append(metadata)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 100 - num_computed_tokens, True


def connector(ours: Any, tier: Tier, *, hands_over: bool, may_take_keys: bool = True) -> Any:
    """A connector with a tier, whose requests find at most 64 tokens in whole blocks."""
    half = types.SimpleNamespace(
        longest_prefix=lambda request: 64, may_take_keys=lambda request: may_take_keys, offered={}, tiers=None
    )
    made = object.__new__(PosencConnector)
    vars(made).update(_ours=ours, _tiers=[tier], _connectors=[ours, tier], _seen=Tiers(), _loading={})
    vars(made).update(_hands_over={tier} if hands_over else set())
    ours.scheduler_half = half
    return made


def test_every_connector_gets_what_its_own_workers_told() -> None:
    """vLLM's class would pass on what the first connector's workers tell, and NIXL's would wait for ever."""
    told = KVConnectorHandshakeMetadata()
    ours, nixl, silent = Tier(KVConnectorHandshakeMetadata()), Tier(told), Tier()
    workers = connector(ours, nixl, hands_over=True)
    ours.speed = Speed(token_seconds=1e-6, weights_seconds=1e-3, weight_bytes=1, block_tokens=16)
    assert workers.speed is ours.speed  # of which the server asks each worker
    said = {(0, rank): workers.get_handshake_metadata() for rank in range(2)}
    workers.set_xfer_handshake_metadata_pp_aware(said)
    assert ours.heard == [{(0, 0): ours.told, (0, 1): ours.told}] and nixl.heard == [{(0, 0): told, (0, 1): told}]
    without = connector(Tier(), silent, hands_over=False)
    without.set_xfer_handshake_metadata_pp_aware({(0, 0): without.get_handshake_metadata()})
    assert without._ours.heard == [{}] and silent.heard == []  # ours says what is missing


@pytest.mark.parametrize(
    ("hands_over", "may_take_keys", "found"),
    [(False, True, 32), (True, True, 68), (True, False, 0)],
    ids=["a tier loads whole blocks below the scale's end", "NIXL all of a prompt", "and none of another scale"],
)
def test_how_many_tokens_are_loaded(hands_over: bool, may_take_keys: bool, found: int) -> None:
    ours: Any = Tier()
    ours.get_num_new_matched_tokens = lambda request, num_computed_tokens: (0, False)
    made = connector(ours, Tier(), hands_over=hands_over, may_take_keys=may_take_keys)
    waiting = request("waiting", kv_transfer_params={"do_remote_prefill": True})
    made._seen.on_new_request(waiting)
    assert made.get_num_new_matched_tokens(waiting, 32) == (found, found > 0)
    if hands_over:  # one that brings nothing, or was preempted after it had brought something
        waiting.kv_transfer_params["do_remote_prefill"] = False
        assert made.get_num_new_matched_tokens(waiting, 32) == (0, False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where every package is."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_nixl_becomes_a_tier_with_its_role_in_a_class_of_ours(role: str) -> None:
    transfer = KVTransferConfig(kv_connector="NixlConnector", kv_role=role, kv_load_failure_policy="recompute")
    refuse_tiers(transfer)
    made = with_tiers(transfer, None)
    refuse_tiers(made)
    assert (made.kv_connector, made.kv_role, made.kv_load_failure_policy) == (CONNECTOR, "kv_both", "recompute")
    [tier] = tiers_of(made)
    assert (tier["kv_connector"], tier["kv_role"]) == ("NixlConnector", role)
    assert tier["kv_connector_module_path"].endswith(".keyed_connectors")
    assert hands_over(made) and not hands_over(
        with_tiers(KVTransferConfig(kv_connector=CONNECTOR, kv_role="kv_both"), 0.5)
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("tier", "beside", "reason"),
    [
        ({"kv_connector_extra_config": {"enforce_handshake_compat": False}}, [], "enforce_handshake_compat must be tr"),
        ({"kv_connector_extra_config": {"bidirectional_kv_xfer": True}}, [], "bidirectional_kv_xfer must be false"),
        ({"kv_buffer_device": "cuda"}, [], "kv_buffer_device of NixlConnector must be cpu, got cuda"),
        ({}, [{"kv_connector": "OffloadingConnector"}], "must have no other connector beside NixlConnector"),
        ({"kv_connector_module_path": "mine"}, [], "no test shows"),
    ],
    ids=["unchecked", "both ways", "over other memory", "beside a tier", "another's class"],
)
def test_nixl_is_refused_where_keys_might_be_others(
    tier: dict[str, Any], beside: list[dict[str, Any]], reason: str
) -> None:
    connectors = [{"kv_connector": "NixlConnector", "kv_role": "kv_producer", **tier}, *beside]
    with pytest.raises(Unsupported, match=reason):
        refuse_tiers({"kv_connector": CONNECTOR, "kv_connector_extra_config": {"connectors": connectors}})


def test_lmcaches_server_is_a_tier_on_a_cpu_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    transfer = KVTransferConfig(kv_connector="LMCacheMPConnector", kv_role="kv_both")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="needs the package lmcache, which is not installed"):
        refuse_tiers(transfer)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    refuse_tiers(transfer)
    assert [tier["kv_connector"] for tier in tiers_of(with_tiers(transfer, None))] == ["LMCacheMPConnector"]
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    with pytest.raises(Unsupported, match="must not name LMCacheMPConnector on a GPU"):
        refuse_tiers(transfer)
