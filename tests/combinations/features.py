"""The features that the tables of ``docs/limits.md`` have rows for, what asks for each, and which test shows it.

Whether a feature is served, and why not, is no part of this list: start-up says so.
"""

from __future__ import annotations

from itertools import chain
from typing import get_args

from vllm.config.speculative import MTPModelTypes

from posenc_runtime.vllm_adapter.contract.names import CONNECTOR
from tests.combinations import elsewhere, shown
from tests.combinations.asking import Asked
from tests.combinations.feature import Feature, connector, drafts, given

NAMES_OF_MTP = sorted({*get_args(MTPModelTypes)} - {"mtp"})

UNRUN = "vLLM serves few models with it, and no engine of ours has run it"
ANOTHER_TYPE = "`on_crossing: recompute` or `pin`, and `prefix_reuse: exact`, on a GPU; or another type"
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
LMCACHE = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}
OTHER_DRAFTS = "`ngram`, `draft_model`, `eagle`, `eagle3` or `mtp`"
OTHER_CONNECTORS = "`OffloadingConnector`, `LMCacheMPConnector` or `NixlConnector`"

_PARALLEL = (
    Feature(
        "tensor parallelism",
        (given(tensor_parallel_size=2),),
        shown=(shown.TWO_WORKERS,),
        shown_at_read_time=(shown.TURNED_TWO_WORKERS,),
    ),
    Feature(
        "pipeline parallelism, also with tensor parallelism",
        (given(pipeline_parallel_size=2), given(pipeline_parallel_size=2, tensor_parallel_size=2)),
        shown=(shown.TWO_WORKERS, shown.FOUR_WORKERS),
        shown_at_read_time=(shown.TURNED_TWO_WORKERS,),
        known="Where requests may cross, Posenc turns `async_scheduling` off, unless it is set",
        known_at_read_time="Tested with one of the two at a time",
    ),
    Feature(
        "pipeline parallelism with `async_scheduling: true`",
        (given(pipeline_parallel_size=2, async_scheduling=True),),
        shown=(shown.NOBODY_CROSSES,),
        known="No engine of ours has run it with `pin`",
        at_read_time=False,
    ),
    Feature(
        "data parallelism: several engines behind one server",
        (given(data_parallel_size=2),),
        shown=(shown.TWO_ENGINES,),
        shown_at_read_time=(shown.TURNED_TWO_ENGINES,),
        known="Each engine has [a budget of its own](scales.md#what-a-crossing-does-to-others)",
    ),
    Feature(
        "an engine in an actor of Ray",
        shown=(shown.RAY,),
        shown_at_read_time=(shown.RAY,),
        known="vLLM's own executor for Ray has no CPU platform",
        known_at_read_time="vLLM's own executor for Ray has no CPU platform",
    ),
    Feature(
        "decode context parallelism (`decode_context_parallel_size` above 1)",
        (given(decode_context_parallel_size=2),),
        known="A token's scale is that of its KV block, and only one of the ranks that share out a request's tokens "
        "has this block. On all others the token has no slot, so they would rotate its query at scale 1",
        instead="tensor parallelism",
    ),
    Feature(
        "prefill context parallelism (`prefill_context_parallel_size` above 1)",
        (given(prefill_context_parallel_size=2),),
        instead="tensor parallelism",
    ),
    Feature("micro-batches (`enable_dbo`, `ubatch_size` above 1)", (given(enable_dbo=True), given(ubatch_size=2))),
    Feature("experts that are shared out anew (`enable_elastic_ep`)", (given(enable_elastic_ep=True),)),
)

_STEPS = (
    Feature(
        "chunked prefill, preemption, prefix caching",
        (given(enable_chunked_prefill=True), given(enable_prefix_caching=True)),
        shown=(shown.CROSSING, shown.PREEMPTED, shown.FOUND_AGAIN),
        shown_at_read_time=(shown.TURNED, shown.TURNED_PREEMPTED),
    ),
    Feature(
        "`enable_prefix_caching: false`",
        (given(enable_prefix_caching=False),),
        instead="`prefix_reuse: exact`",
        shown=(shown.NO_PREFIXES,),
        at_read_time=False,
    ),
    Feature(
        "priorities (`scheduling_policy: priority`)",
        (given(scheduling_policy="priority"),),
        shown=(shown.AHEAD,),
        shown_at_read_time=(shown.TURNED_PREEMPTED,),
    ),
    Feature(
        "CUDA graphs",
        (given(enforce_eager=False),),
        shown=(shown.GRAPHS,),
        shown_at_read_time=(shown.TURNED_GRAPHS,),
        known="What was [tested on a GPU](#gpu)",
        known_at_read_time="[No GPU has run them](#gpu)",
    ),
    Feature(
        "`async_scheduling`",
        (given(async_scheduling=True),),
        shown=(shown.AHEAD, shown.AHEAD_AS_ON_A_GPU),
        shown_at_read_time=(shown.TURNED_AS_ON_A_GPU,),
        known="A request that crosses skips one step, and so do requests whose KV blocks it needs",
    ),
    Feature(
        "`enable_return_routed_experts`",
        (given(enable_return_routed_experts=True),),
        shown=(shown.NOBODY_CROSSES,),
        known="No engine of ours has run it with `pin`",
        at_read_time=False,
    ),
)

_CACHE_TYPES = (
    Feature(
        "KV cache in FP8: `kv_cache_dtype: fp8` or `fp8_e4m3`, with a scale of a layer or of each head",
        (given(kv_cache_dtype="fp8"), given(kv_cache_dtype="fp8_e4m3")),
        shown=(shown.FLOAT8, shown.FLOAT8_AS_ON_A_GPU),
        shown_at_read_time=(shown.TURNED_FLOAT8,),
        known="[Turned keys](scales.md#crossings-of-float8-keys) lose a little at each crossing. On a CPU this needs "
        "AVX-512, as in vLLM; on a GPU, compute capability 8.9. No GPU has run it. With `fused_keys: stock`, and on "
        "the Transformers backend with a method that has an attention factor, re-rotation is refused at start-up",
        known_at_read_time="On a CPU this needs AVX-512, as in vLLM. There vLLM's attention has one scale for a layer: "
        "it takes the largest of the heads' scales. Scales other than 1 are tested in the kernels alone. No GPU has "
        "run it",
    ),
    Feature(
        "`kv_cache_dtype: fp8_e5m2`",
        (given(kv_cache_dtype="fp8_e5m2"),),
        shown=(shown.FLOAT8,),
        shown_at_read_time=(shown.TURNED_FLOAT8,),
        instead="`fp8`; or `on_crossing: recompute` or `pin`, and `prefix_reuse: exact`",
        instead_at_read_time="`fp8`",
    ),
    Feature(
        "KV cache in the model's data type (`auto`, `float16`, `bfloat16`)",
        tuple(given(kv_cache_dtype=name) for name in ("auto", "float16", "bfloat16")),
        shown=(shown.CROSSING,),
        shown_at_read_time=(shown.TURNED, shown.TURNED_FLOAT8),
        known_at_read_time="Tested in float32 and bfloat16",
    ),
    Feature(
        "KV cache with a scale for each token and head (`fp8_per_token_head`, `int8_per_token_head`)",
        (given(kv_cache_dtype="fp8_per_token_head"), given(kv_cache_dtype="int8_per_token_head")),
        shown=(shown.OWN_SCALES_AS_ON_A_GPU, shown.OWN_SCALES),
        known="A crossing lets the scale of a key grow where the turned key has a larger number. No GPU has run it; "
        "float8 needs compute capability 8.9",
        instead="a GPU, or another type",
        instead_at_read_time="another type",
    ),
    Feature(
        "KV cache of packed numbers (`int4_per_token_head`, `turboquant_*`)",
        tuple(
            given(kv_cache_dtype=name)
            for name in (
                *("int4_per_token_head", "turboquant_k8v4", "turboquant_4bit_nc"),
                *("turboquant_k3v4_nc", "turboquant_3bit_nc"),
            )
        ),
        shown=(shown.NOT_TURNED,),
        known=UNRUN,
        instead=ANOTHER_TYPE,
        instead_at_read_time="another type",
    ),
    Feature(
        "KV cache of packed numbers with scales for groups (`nvfp4`, `nvfp4_4over6`, `ultraquant_4bit`)",
        tuple(given(kv_cache_dtype=name) for name in ("nvfp4", "nvfp4_4over6", "ultraquant_4bit")),
        shown=(shown.NOT_TURNED,),
        known=UNRUN,
        instead=ANOTHER_TYPE,
        instead_at_read_time="another type",
    ),
    Feature(
        "KV cache with parts in several types (`fp8_ds_mla`, `nvfp4_ds_mla`)",
        (given(kv_cache_dtype="fp8_ds_mla"), given(kv_cache_dtype="nvfp4_ds_mla")),
        shown=(shown.NOT_TURNED,),
        known=UNRUN,
        instead=ANOTHER_TYPE,
        instead_at_read_time="another type",
    ),
    Feature(
        "KV cache for Gaudi (`fp8_inc`)",
        (given(kv_cache_dtype="fp8_inc"),),
        instead="another type",
    ),
)

_LAYERS = (
    Feature(
        "sliding windows, chunked attention",
        shown=(shown.WINDOWS,),
        shown_at_read_time=(shown.TURNED_FAMILY,),
        known="A crossing turns the blocks that are still in the window",
        known_at_read_time="Tested with windows. Models with chunked attention rotate only in chunked layers, so no "
        "query turns",
    ),
    Feature(
        "`engine.disable_sliding_window` where requests may be longer than the window",
        (Asked(check=elsewhere.disabled_window),),
    ),
    Feature(
        "recurrent layers",
        (given({"is_hybrid": True}),),
        instead="`prefix_reuse: exact`",
        shown=(shown.RECURRENT,),
        shown_at_read_time=(shown.TURNED_FAMILY,),
    ),
    Feature(
        "layers that no scale changes beside others (Gemma 3)",
        (Asked(check=elsewhere.layers_that_no_scale_changes),),
        shown=(shown.WINDOWS,),
        at_read_time=False,
    ),
)

_DRAFTS_BESIDE = (
    Feature(
        "`speculative_config` with `ngram`, `draft_model`, `eagle`, `eagle3` or `mtp`",
        tuple(drafts(method) for method in ("ngram", "draft_model", "eagle", "eagle3", "mtp")),
        shown=(shown.DRAFTS, shown.DRAFTS_RECOMPUTED, shown.DRAFTS_PINNED, shown.DRAFTS_OF_MTP),
        shown_at_read_time=(shown.TURNED_DRAFTS, shown.TURNED_DRAFTS_OF_MTP, shown.TURNED_DRAFTS_ON_AXES),
        known="A drafter's keys have the scale of their request, and a crossing turns them with the model's. A drafter "
        "may have been trained on shorter requests than the model, and have another base (`rope_theta`). One that has "
        "no rotary embedding or other `rope_parameters` is refused at start-up",
        known_at_read_time="A drafter with a rotary embedding drafts past its own trained length, too",
    ),
    Feature(
        "`speculative_config` beside `async_scheduling`",
        (given(speculative_config={"method": "eagle"}, async_scheduling=True),),
        shown=(shown.DRAFTS_AHEAD,),
        at_read_time=False,
        known="As far as tests of the scheduler show: vLLM's CPU build does not combine the two, and no GPU has run it",
    ),
    Feature(
        "`speculative_config` with `suffix`",
        (drafts("suffix"),),
        instead=OTHER_DRAFTS,
    ),
    Feature(
        "`speculative_config` with `dflash` or `dspark`",
        (drafts("dflash"), drafts("dspark")),
        instead=OTHER_DRAFTS,
    ),
    Feature(
        "`speculative_config` with `medusa`, `mlp_speculator`, `ngram_gpu`, `custom_class` or `extract_hidden_states`",
        tuple(
            drafts(method)
            for method in ("medusa", "mlp_speculator", "ngram_gpu", "custom_class", "extract_hidden_states")
        ),
        instead=OTHER_DRAFTS,
    ),
    Feature(
        "`speculative_config` with MTP by the name of a model (`deepseek_mtp`, `qwen3_next_mtp`, ...)",
        tuple(drafts(method) for method in NAMES_OF_MTP),
        instead="`mtp`, as vLLM calls all of them now",
    ),
    Feature(
        "`speculative_config` with recurrent layers",
        (drafts("eagle", {"is_hybrid": True}),),
        instead="leave `speculative_config` out",
    ),
    Feature(
        "`speculative_config` with multi-head latent attention or M-RoPE",
        tuple(drafts("eagle", {trait: True}) for trait in ("use_mla", "uses_mrope")),
        at_read_time=False,
    ),
    Feature(
        "`speculative_config` with pipeline parallelism",
        (given(speculative_config={"method": "eagle"}, pipeline_parallel_size=2),),
    ),
    Feature(
        "`parallel_drafting`, `num_speculative_tokens_per_batch_size`",
        (
            drafts("draft_model", parallel_drafting=True),
            drafts("draft_model", num_speculative_tokens_per_batch_size=[(1, 4, 2)]),
        ),
    ),
    Feature(
        "several MTP layers, Gemma 4's MTP",
        tuple(
            given(drafter={name: True}, speculative_config={"method": "mtp"})
            for name in ("use_multi_module_mtp", "use_gemma4_mtp")
        ),
    ),
)

_TIERS = (
    Feature(
        "offloading to the engine's own memory: `kv_offloading_size`, or `OffloadingConnector`",
        (given(kv_offloading_size=4.0), connector("OffloadingConnector")),
        shown=(shown.OFFLOADED,),
        shown_at_read_time=(shown.TURNED_OFFLOADED,),
        instead="`prefix_reuse: exact` or `continue`",
        known="[How to set it up](operations.md#a-tier-below-the-cache). vLLM itself offloads on GPUs only, and no GPU "
        "has run it with scales. Blocks are stored and loaded at their scale, until their request crosses",
        known_at_read_time="vLLM itself offloads on GPUs only",
    ),
    Feature(
        "offloading or NIXL beside `speculative_config`",
        (given(kv_offloading_size=4.0, speculative_config={"method": "ngram"}),),
        instead="one of the two",
        at_read_time=False,
    ),
    Feature(
        "offloading by another backend (`kv_offloading_backend: lmcache`)",
        (given(kv_offloading_size=4.0, kv_offloading_backend="lmcache"),),
    ),
    Feature(
        "offloading below the engine's memory (`spec_name: TieringOffloadingSpec`)",
        (connector("OffloadingConnector", kv_connector_extra_config={"spec_name": "TieringOffloadingSpec"}),),
    ),
    Feature(
        "LMCache's server (`LMCacheMPConnector`)",
        (connector("LMCacheMPConnector"),),
        shown=(shown.LMCACHE,),
        shown_at_read_time=(shown.TURNED_LMCACHE,),
        instead="`OffloadingConnector`; `prefix_reuse: exact` or `continue`",
        known="[How to set it up](operations.md#lmcache), with LMCache 0.5.6. Engines with equal `scaling` read each "
        "other's blocks, and blocks of scale 1 are those of every engine of the model. A float8 cache beside it is "
        "refused: by `on_crossing`, keys or queries carry the attention factor",
        known_at_read_time="[How to set it up](operations.md#caches-that-engines-share), with LMCache 0.5.6 on a CPU. "
        "Posenc adds the deployment's distances to the names of chunks. No GPU has run it. If an LMCache names chunks "
        "in another way, the engine does not start",
    ),
    Feature(
        "prefill and decode apart over NIXL (`NixlConnector`)",
        (connector("NixlConnector"),),
        shown=(shown.NIXL, shown.NIXL_WINDOWS, shown.NIXL_REFUSES),
        shown_at_read_time=(shown.TURNED_NIXL, shown.TURNED_NIXL_REFUSES),
        instead="`on_crossing: rerotate` or `recompute`, and `prefix_reuse: exact`",
        known="[How to set it up](operations.md#prefill-and-decode-apart), on a CPU, over TCP. A request begins at the "
        "scale at which it was prefilled. That scale is signed, so both servers need the same `POSENC_TRANSFER_KEY`. "
        "No GPU has run it with scales",
        known_at_read_time="[How to set it up](operations.md#prefill-and-decode-apart), on a CPU, over TCP; servers "
        "compare their distances when they meet. No GPU has run it. A server with another `window`, `page` or "
        "`rope_type`, or stock vLLM, refuses the handshake",
    ),
    Feature(
        "NIXL with `enforce_handshake_compat: false`",
        (connector("NixlConnector", kv_connector_extra_config={"enforce_handshake_compat": False}),),
    ),
    Feature(
        "NIXL with `bidirectional_kv_xfer: true`",
        (connector("NixlConnector", kv_connector_extra_config={"bidirectional_kv_xfer": True}),),
    ),
    Feature(
        "NIXL beside another tier",
        (given(kv_offloading_size=4.0, kv_transfer_config=NIXL),),
        instead="one of the two",
        at_read_time=False,
    ),
    Feature(
        "LMCache's server with a float8 cache",
        (given(kv_cache_dtype="fp8", kv_transfer_config=LMCACHE),),
        instead="`kv_cache_dtype: auto`",
    ),
    Feature(
        "NIXL with a float8 cache",
        (given(kv_cache_dtype="fp8", kv_transfer_config=NIXL),),
        instead="`kv_cache_dtype: auto`",
    ),
    Feature(
        "NIXL with recurrent layers",
        (given({"is_hybrid": True}, kv_transfer_config=NIXL),),
    ),
    Feature(
        "NIXL with M-RoPE",
        (given({"uses_mrope": True}, kv_transfer_config=NIXL),),
        at_read_time=False,
    ),
    Feature(
        "`speculative_config` beside LMCache's server or NIXL",
        tuple(given(speculative_config={"method": "ngram"}, kv_transfer_config=each) for each in (LMCACHE, NIXL)),
        instead="one of the two",
        with_scales=False,
    ),
    Feature(
        "a role of prefill or of decode alone (`kv_role: kv_producer` or `kv_consumer`) for Posenc's own connector",
        tuple(
            Asked({"kv_transfer_config": {"kv_connector": CONNECTOR, "kv_role": role}}, in_our_place=True)
            for role in ("kv_producer", "kv_consumer")
        ),
        instead="`NixlConnector` as `kv_transfer_config.kv_connector`; it has the role",
        at_read_time=False,
    ),
    Feature(
        "`ExampleConnector`, `LMCacheConnectorV1`",
        (connector("ExampleConnector"), connector("LMCacheConnectorV1")),
        instead=OTHER_CONNECTORS,
        at_read_time=False,
    ),
    Feature(
        "`LMCacheConnectorV1`, `MooncakeConnector`, `MooncakeStoreConnector`, `FlexKVConnectorV1`, `MoRIIOConnector`",
        tuple(
            connector(name)
            for name in (
                *("LMCacheConnectorV1", "MooncakeConnector", "MooncakeStoreConnector"),
                *("FlexKVConnectorV1", "MoRIIOConnector"),
            )
        ),
        instead=OTHER_CONNECTORS,
        with_scales=False,
    ),
    Feature(
        "`ExampleConnector`, `HF3FSKVConnector`",
        (connector("ExampleConnector"), connector("HF3FSKVConnector")),
        instead=OTHER_CONNECTORS,
        with_scales=False,
    ),
    Feature("`NixlPullConnector`", (connector("NixlPullConnector"),), instead="`NixlConnector`", with_scales=False),
    Feature(
        "`SimpleCPUOffloadConnector`, `NixlPushConnector`, several at once (`MultiConnector`), `HiSparseConnector`, "
        "`ExampleHiddenStatesConnector`, `DecodeBenchConnector`",
        tuple(
            connector(name)
            for name in (
                *("SimpleCPUOffloadConnector", "NixlPushConnector", "MultiConnector", "HiSparseConnector"),
                *("ExampleHiddenStatesConnector", "DecodeBenchConnector"),
            )
        ),
        instead=OTHER_CONNECTORS,
    ),
    Feature(
        "`MooncakeConnector`, `MooncakeStoreConnector`, `FlexKVConnectorV1`, `MoRIIOConnector`, `HF3FSKVConnector`, "
        "`NixlPullConnector`",
        tuple(
            connector(name)
            for name in (
                *("MooncakeConnector", "MooncakeStoreConnector", "FlexKVConnectorV1"),
                *("MoRIIOConnector", "HF3FSKVConnector", "NixlPullConnector"),
            )
        ),
        instead=OTHER_CONNECTORS,
        at_read_time=False,
    ),
    Feature(
        "a connector in the place of Posenc's, other than `OffloadingConnector`",
        (connector("SimpleCPUOffloadConnector", in_our_place=True),),
        at_read_time=False,
        instead="connectors beside Posenc's, at `kv_connector_extra_config.connectors`",
    ),
    Feature(
        "KV events (`kv_events_config`)",
        (given(kv_events_config={"enable_kv_cache_events": True}),),
        shown=(shown.KV_EVENTS,),
        at_read_time=False,
        known="No other request can read the blocks that a request fills after a crossing, or copies of a prefix from "
        "another scale. Events give these blocks names that no other block has. With `prefix_reuse: continue`, later "
        "turns can read what a request has after a crossing, and the names are made of its tokens and scales. Every "
        "parent was stored before, except where some layers cache what no scale changes",
    ),
)

_REQUESTS = (
    Feature(
        "beam search, `LLM.beam_search` too; `/generative_scoring`, `/v1/systemone`, `/v1/decisions`",
        shown=(shown.BEAMS, shown.BEAMS_OF_LLM, shown.ITEMS),
        at_read_time=False,
        known="All beams, items or questions of a request run at [one scale](scales.md#beams-items-to-score-questions)"
        ". None of them crosses, so `posenc_on_crossing: rerotate` or `recompute` in such a request is refused",
    ),
    Feature("beam search", shown_at_read_time=(shown.TURNED_SEVERAL,), with_scales=False),
    Feature("`/generative_scoring`", shown_at_read_time=(shown.TURNED_SCORES,), with_scales=False),
    Feature(
        "`n` above 1",
        shown=(shown.SEVERAL_ANSWERS,),
        shown_at_read_time=(shown.TURNED_SEVERAL,),
        known="The response names [the scale and the crossings of each answer](scales.md#what-answers-say)",
    ),
    Feature(
        "LoRA",
        (given(enable_lora=True),),
        shown=(shown.ADAPTED, shown.ADAPTERS),
        shown_at_read_time=(shown.TURNED_ADAPTED,),
    ),
    Feature(
        "LoRA with MPT and Baichuan",
        (Asked({"enable_lora": True}, check=elsewhere.adapters_of_mpt),),
        instead="merge adapters into the checkpoint",
        at_read_time=False,
    ),
    Feature(
        "quantised weights with MPT and Baichuan",
        (Asked({"quantization": "awq"}, check=elsewhere.quantised_mpt),),
        at_read_time=False,
    ),
    Feature("models that draft or pool (`runner: pooling`)", (Asked(model={"runner_type": "pooling"}),)),
)

GROUPS = {
    "Several devices, several engines": _PARALLEL,
    "Steps of the engine": _STEPS,
    "Types of the KV cache": _CACHE_TYPES,
    "Layers": _LAYERS,
    "Drafted tokens": _DRAFTS_BESIDE,
    "Tiers of the KV cache, and other engines": _TIERS,
    "What requests and models ask for": _REQUESTS,
}
FEATURES = tuple(chain.from_iterable(GROUPS.values()))
