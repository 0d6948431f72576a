"""Refuses an engine's arguments that contradict scaling, before vLLM makes its configuration of them.

vLLM refuses many of these arguments itself, for reasons of its own: a drafter that is not found, a connector that lacks
a class. Its reason would come first, and whoever mended that would only then be told that we do not serve the argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_runtime.encodings.methods import turns_queries
from posenc_runtime.vllm_adapter.contract.active import KEY
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import CONNECTOR, NIXL
from posenc_runtime.vllm_adapter.refusals.drafters import refuse_method
from posenc_runtime.vllm_adapter.refusals.shared_caches import (
    refuse_drafts_from_others,
    refuse_missing_package,
    refuse_shared_cache,
    refuse_shared_offloading,
)
from posenc_runtime.vllm_adapter.refusals.tiers import TIERS, refuse_tiers

POOLING = "pooling and draft models"
PREFILL_CONTEXT = "prefill_context_parallel_size above 1"
DECODE_CONTEXT = "decode_context_parallel_size above 1"
UBATCHES = "enable_dbo, or ubatch_size above 1"
ELASTIC = "enable_elastic_ep"
SPECULATIVE = "speculative_config"
DIFFUSION = "diffusion_config"


def refuse_arguments(engine_args: Any) -> None:
    """Check the arguments of an engine that has a section of ours.

    Args:
        engine_args: vLLM's ``EngineArgs``, as the user gave them.

    Raises:
        Unsupported: when one of them is not served; the message names it and the reason.
    """
    section = engine_args.additional_config.get(KEY)
    turns = isinstance(section, Mapping) and turns_queries(str(section.get("rope_type")))
    transfer = engine_args.kv_transfer_config
    if (engine_args.speculative_config or {}).get("method") is not None:
        refuse_method(engine_args.speculative_config["method"], turns_queries=turns)
    if turns:
        rope_type = str(section["rope_type"])
        refuse_shared_cache(transfer, rope_type, is_completed=False)
        refuse_drafts_from_others(transfer, engine_args.speculative_config is not None, rope_type)
        refuse_missing_package(transfer)
        refuse_shared_offloading(engine_args.kv_offloading_size, engine_args.kv_offloading_backend, rope_type)
    else:
        refuse_offloading(engine_args.kv_offloading_size, engine_args.kv_offloading_backend)
        if transfer is not None:
            read = transfer.get if isinstance(transfer, Mapping) else lambda name: getattr(transfer, name)
            if read("kv_connector") not in TIERS:
                refuse_connector(read("kv_connector"), read("kv_role"))
            refuse_tiers(transfer)
    refuse_unshown({POOLING: engine_args.runner in ("pooling", "draft")}, "serve it with vLLM, without posenc")
    refuse_unshown(
        {
            PREFILL_CONTEXT: engine_args.prefill_context_parallel_size > 1,
            DECODE_CONTEXT: engine_args.decode_context_parallel_size > 1,
            UBATCHES: engine_args.enable_dbo or engine_args.ubatch_size > 1,
            ELASTIC: engine_args.enable_elastic_ep,
            DIFFUSION: engine_args.diffusion_config is not None,
        }
    )


def refuse_offloading(size: float | None, backend: str | None) -> None:
    """Check ``kv_offloading_size``, GiB, and its backend.

    Raises:
        Unsupported: when another connector than vLLM's own is to offload.
    """
    if size is not None and backend not in (None, "native"):
        raise Unsupported(
            f"kv_offloading_backend must be native where requests are scaled, got {backend}: no test shows that its "
            "answers are right. Leave it out"
        )


def refuse_connector(name: str | None, role: str | None) -> None:
    """Check ``kv_transfer_config``.

    Raises:
        Unsupported: when its connector is not ours, or does a part of its work.
    """
    if name != CONNECTOR:
        raise Unsupported(
            f"additional_config.posenc needs kv_transfer_config.kv_connector to be {CONNECTOR}, got {name}: without it "
            f"no block gets its scale. Leave it out, or name one of {', '.join(TIERS)}, which stand beside it"
        )
    if role != "kv_both":
        raise Unsupported(
            f"kv_transfer_config.kv_role must be kv_both where its kv_connector is {CONNECTOR}, got {role}: that "
            f"connector hands nothing over. Give the role to {NIXL}, as kv_transfer_config.kv_connector"
        )


def refuse_unshown(asked: Mapping[str, bool], advice: str = "leave that setting out") -> None:
    """Refuse features whose answers no test has shown to be right.

    Args:
        asked: whether it is asked for, by its name.
        advice: what to do.

    Raises:
        Unsupported: when it is asked for.
    """
    for what, is_asked in asked.items():
        if is_asked:
            raise Unsupported(
                f"posenc does not serve {what}, because no test shows that its answers are right: {advice}"
            )
