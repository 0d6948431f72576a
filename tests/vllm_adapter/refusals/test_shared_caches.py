"""Connectors and drafters beside queries that turn: those that were shown are served, the others refused by name."""

from __future__ import annotations

import types
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.engine_configuration import draft_as_long_as_served
from posenc_runtime.vllm_adapter.refusals import shared_caches
from posenc_runtime.vllm_adapter.refusals.arguments import refuse_arguments
from posenc_runtime.vllm_adapter.refusals.shared_caches import refuse_shared_cache
from posenc_runtime.vllm_adapter.refusals.turning_drafters import refuse_drafter

REROPE = Deployment(rope_type="rerope", original_max_position_embeddings=256, max_model_len=4096)


def transfer(name: str, **said: Any) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": "kv_both", **said}


@pytest.mark.parametrize("kind", [dict, lambda said: KVTransferConfig(**said)], ids=["mapping", "of vLLM"])
def test_vllms_offloading_to_memory_is_served(kind: Any) -> None:
    refuse_shared_cache(None, "rerope")
    refuse_shared_cache(kind(transfer("OffloadingConnector")), "rerope")
    refuse_shared_cache(kind(transfer("OffloadingConnector", kv_connector_extra_config={"cpu_bytes_to_use": 1})), "x")


OTHERS = sorted(set(KVConnectorFactory._registry) - {shared_caches.OFFLOADING, "PosencConnector"})


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_connector_of_vllm_is_refused_with_a_reason(name: str) -> None:
    rule = rf"^kv_transfer_config\.kv_connector must be OffloadingConnector .* rerope, got {name}: .* Leave "
    with pytest.raises(Unsupported, match=rule):
        refuse_shared_cache(transfer(name), "rerope")


@pytest.mark.parametrize("name", sorted(shared_caches._REASONS))
def test_a_connector_that_is_refused_because_others_read_its_blocks_is_one_of_vllms(name: str) -> None:
    assert name in OTHERS
    with pytest.raises(Unsupported, match="by model and tokens alone"):
        refuse_shared_cache(KVTransferConfig(**transfer(name)), "rerope")


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


def test_arguments_are_checked_before_vllm_reads_them() -> None:
    refuse_arguments(engine_args(kv_offloading_size=4.0, speculative_config={"method": "ngram"}))
    with pytest.raises(Unsupported, match=r"kv_offloading_backend must be native where .* rerope, got lmcache"):
        refuse_arguments(engine_args(kv_offloading_size=4.0, kv_offloading_backend="lmcache"))
    with pytest.raises(Unsupported, match="got NixlConnector: other engines read its blocks"):
        refuse_arguments(engine_args(kv_transfer_config=transfer("NixlConnector")))


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle", "eagle3", "mtp"])
def test_drafters_that_were_shown_are_served(method: str) -> None:
    refuse_drafter(None, "rerope")
    refuse_drafter(types.SimpleNamespace(method=method), "rerope")


@pytest.mark.parametrize("method", ["medusa", "dflash", "suffix", "extract_hidden_states"])
def test_another_drafter_is_refused_by_its_method(method: str) -> None:
    rule = (
        r"^speculative_config\.method must be one of ngram, draft_model, eagle, eagle3, mtp where .* rerope, "
        rf"got {method}: .* Choose"
    )
    with pytest.raises(Unsupported, match=rule):
        refuse_drafter(types.SimpleNamespace(method=method), "rerope")


@pytest.mark.parametrize(
    ("rope_parameters", "asked", "longest"),
    [({"rope_type": "default", "rope_theta": 1e4}, None, 4096), ({"rope_theta": 1e4}, 100, 256), (None, None, 256)],
    ids=["as long as served", "as long as asked", "does not rotate"],
)
def test_a_drafter_that_rotates_drafts_for_requests_of_every_length(
    rope_parameters: Any, asked: int | None, longest: int
) -> None:
    drafter = types.SimpleNamespace(
        max_model_len=256,
        hf_text_config=types.SimpleNamespace(rope_parameters=rope_parameters),
        architectures=["LlamaForCausalLM"],
    )
    vllm_config: Any = types.SimpleNamespace(
        model_config=types.SimpleNamespace(max_model_len=4096),
        speculative_config=types.SimpleNamespace(draft_model_config=drafter, max_model_len=asked),
        additional_config={"posenc": REROPE.to_mapping()},
    )
    draft_as_long_as_served(vllm_config)
    assert drafter.max_model_len == longest
