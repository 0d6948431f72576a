"""What scaling cannot be combined with is refused by name."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from typing import Any, get_args

import pytest
from transformers import FalconConfig, HrmTextConfig, PreTrainedConfig
from vllm.config.cache import CacheDType
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.vllm_adapter.checkpoint.scalable_checkpoints import refuse_checkpoint, refuse_method
from posenc_runtime.vllm_adapter.contract.attention_choice import KEY as ATTENTION
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import CONNECTOR, SCHEDULER
from posenc_runtime.vllm_adapter.in_worker.rotary import building
from posenc_runtime.vllm_adapter.refusals import rotating_attention as fused_rotary
from posenc_runtime.vllm_adapter.refusals.engine import refuse_unsupported
from posenc_runtime.vllm_adapter.refusals.moving_requests import refuse_moving_requests
from tests.model_configs import SARVAM_MLA

LLAMA = {"rope_type": "default", "rope_theta": 10000.0}


def config(rope_parameters: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(rope_parameters=rope_parameters)


@pytest.mark.parametrize(
    "architecture",
    [
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Phi3ForCausalLM",
        "GPTJForCausalLM",
        "Glm4ForCausalLM",
        "CohereForCausalLM",  # rotates in some layers alone
        "Qwen3NextForCausalLM",  # has a kernel that reads the table, where a scaled embedding does not allow it
        "DeepseekV3ForCausalLM",  # has an indexer that reads the table, where a configuration asks for it
    ],
)
def test_architectures_that_rotate_through_the_rotary_embedding_are_served(architecture: str) -> None:
    refuse_checkpoint(config(LLAMA), [architecture])


@pytest.mark.parametrize(
    ("architecture", "reader", "said"),
    [
        ("HYV3ForCausalLM", "hy_v3", {}),
        ("DeepseekV32ForCausalLM", "deepseek_v2", {"index_topk": 2048}),
        # By a package that picks a file of another for the device.
        ("MiniMaxM3SparseForCausalLM", r"minimax_m3\S+", {}),
    ],
)
def test_architectures_that_read_the_table_themselves_are_refused_by_name(
    architecture: str, reader: str, said: dict[str, Any]
) -> None:
    asked = config(LLAMA)
    vars(asked).update(said)
    with pytest.raises(Unsupported, match=rf"does not serve {architecture}: .*{reader} of vLLM reads the table"):
        refuse_checkpoint(asked, [architecture])


@pytest.mark.parametrize(
    "architecture", ["OlmoForCausalLM", "SmolLM3ForCausalLM", "Olmo2ForCausalLM", "NobodyHeardOfForCausalLM"]
)
def test_architectures_that_only_the_transformers_backend_runs_are_served(architecture: str) -> None:
    refuse_checkpoint(config(LLAMA), [architecture])


@pytest.mark.parametrize(
    ("rope_parameters", "rule"),
    [
        (
            {"rope_type": "ntk", "rope_theta": 1e6, "factor": 4.0},
            "whose own rope_type is one of default, dynamic, linear, llama3, longrope, yarn, got ntk",
        ),
        (LLAMA | {"use_fope": True}, "rope_parameters with use_fope"),
        (LLAMA | {"xdrope_section": [4, 4, 4, 4]}, "rope_parameters with xdrope_section"),
        (
            {"chunked_attention": LLAMA, "sliding_attention": LLAMA},
            "a set for full_attention, which is scaled, got one for each of chunked_attention, sliding_attention",
        ),
        (None, "scaling needs a model with rotary embeddings, but the configuration of LlamaForCausalLM"),
    ],
)
def test_checkpoints_that_cannot_be_scaled_are_refused_with_the_reason(rope_parameters: Any, rule: str) -> None:
    with pytest.raises(Unsupported, match=rule):
        refuse_checkpoint(config(rope_parameters), ["LlamaForCausalLM"])


def test_a_base_that_a_model_does_not_read_is_nothing_to_scale() -> None:
    rule = "with rotary embeddings, but NemotronHForCausalLM has none in vLLM, whatever its configuration says"
    with pytest.raises(Unsupported, match=rule):
        refuse_checkpoint(config(LLAMA), ["NemotronHForCausalLM"])


@pytest.mark.parametrize(
    "rope_parameters",
    [
        pytest.param(LLAMA | {"mrope_section": [16, 24, 24]}, id="three-axes"),
        pytest.param({"full_attention": LLAMA, "sliding_attention": LLAMA | {"rope_theta": 5e5}}, id="layer-types"),
        pytest.param({"full_attention": LLAMA | {"rope_type": "proportional"}}, id="proportional"),
        pytest.param(LLAMA | {"rope_type": "yarn", "factor": 4.0}, id="yarn"),
        pytest.param(LLAMA | {"rope_type": "linear", "factor": 4.0}, id="linear"),
        pytest.param(LLAMA | {"rope_type": "dynamic", "factor": 4.0}, id="dynamic"),
    ],
)
def test_rotations_that_are_scaled_already_or_not_all_that_a_model_has_are_served(
    rope_parameters: dict[str, Any],
) -> None:
    refuse_checkpoint(config(rope_parameters), ["LlamaForCausalLM"])


def test_proportional_rope_is_scaled_by_the_methods_for_plain_rope() -> None:
    gemma_4 = {"full_attention": LLAMA | {"rope_type": "proportional"}, "sliding_attention": LLAMA}
    refuse_unsupported(deployed(engine(model_config__hf_text_config=config(gemma_4))))


def test_a_falcon_with_alibi_has_nothing_to_scale() -> None:
    refuse_checkpoint(FalconConfig(), ["FalconForCausalLM"])
    with pytest.raises(Unsupported, match="but the configuration of FalconForCausalLM has ALiBi"):
        refuse_checkpoint(FalconConfig(alibi=True), ["FalconForCausalLM"])


def engine(**changed: Any) -> types.SimpleNamespace:
    """A configuration of vLLM's that is served, but for what is changed: ``section__setting``."""
    sections: dict[str, dict[str, Any]] = {
        "kv_transfer_config": {"kv_connector": CONNECTOR, "kv_role": "kv_both"},
        "scheduler_config": {"scheduler_cls": SCHEDULER, "async_scheduling": False, "policy": "fcfs"},
        "cache_config": {"cache_dtype": "auto", "kv_offloading_size": None, "enable_prefix_caching": True},
        "aux_output_config": {"enabled": False},
        "model_config": {
            **{
                "is_encoder_decoder": False,
                "is_multimodal_model": False,
                "uses_mrope": False,
                "is_hybrid": False,
                "use_mla": False,
            },
            "runner_type": "generate",
            **{"architectures": ["LlamaForCausalLM"], "hf_text_config": config({"rope_type": "default"})},
            **{"max_model_len": 512, "original_max_model_len": None},
            "using_transformers_backend": lambda: False,
        },
        "parallel_config": {
            **{"prefill_context_parallel_size": 1, "decode_context_parallel_size": 1, "use_ubatching": False},
            **{"pipeline_parallel_size": 1, "enable_elastic_ep": False},
        },
    }
    for path, value in changed.items():
        section, _, setting = path.partition("__")
        sections[section][setting] = value
    made = {name: types.SimpleNamespace(**values) for name, values in sections.items()}
    return types.SimpleNamespace(**made, speculative_config=None, diffusion_config=None, additional_config={})


def deployed(vllm_config: types.SimpleNamespace, **settings: Any) -> types.SimpleNamespace:
    yarn = Deployment(
        rope_type="yarn", scales=(1.0, 2.0), original_max_position_embeddings=256, max_model_len=512, **settings
    )
    vllm_config.additional_config = {"posenc": yarn.to_mapping()}
    return vllm_config


MOVING = [
    pytest.param({"scheduler_config__scheduler_cls": None}, "scheduler_cls must be ", id="stock-scheduler"),
    pytest.param(
        {"scheduler_config__async_scheduling": True, "parallel_config__pipeline_parallel_size": 2},
        "async_scheduling must be false where pipeline_parallel_size is above 1",
        id="stages-scheduled-ahead",
    ),
    pytest.param(
        {"aux_output_config__enabled": True}, "enable_return_routed_experts must be false where on_", id="experts"
    ),
]
TURNING = [
    pytest.param(
        {"cache_config__cache_dtype": cache_dtype},
        rf"kv_cache_dtype must be one of .*, fp8_e4m3.* re-rotated, got {cache_dtype}: {reason}",
        id=cache_dtype,
    )
    for cache_dtype, reason in {
        "fp8_inc": "only Gaudi has it",
        "fp8_ds_mla": "only models whose sparse attention",
        "nvfp4_ds_mla": "only models whose sparse attention",
        "int8_per_token_head": "on a CPU, vLLM's attention keeps nothing in it",
        "fp8_per_token_head": "on a CPU, vLLM's attention keeps nothing in it",
        "int4_per_token_head": "several numbers are packed",
        "turboquant_k8v4": "several numbers are packed",
        "turboquant_4bit_nc": "several numbers are packed",
        "turboquant_k3v4_nc": "several numbers are packed",
        "turboquant_3bit_nc": "several numbers are packed",
        "ultraquant_4bit": "several numbers are packed",
        "nvfp4": "several numbers are packed",
        "nvfp4_4over6": "several numbers are packed",
        "fp5": "nobody has examined how it keeps keys",
    }.items()
]


def test_every_type_of_cache_that_vllm_knows_is_turned_or_refused_for_a_reason() -> None:
    refused = {parameter.id for parameter in TURNING}
    served = {"auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"}
    assert set(get_args(CacheDType)) == (refused | served) - {"fp5"}


def test_float8_keys_are_turned_but_e5m2_on_a_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for cache_dtype in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        refuse_unsupported(deployed(engine(cache_config__cache_dtype=cache_dtype)))
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: False)
    monkeypatch.setattr(type(current_platform), "is_cuda", lambda _: True)
    monkeypatch.setattr(type(current_platform), "get_device_capability", lambda *_: DeviceCapability(9, 0))
    for cache_dtype in ("fp8", "int8_per_token_head", "fp8_per_token_head"):
        refuse_unsupported(deployed(engine(cache_config__cache_dtype=cache_dtype)))
    with pytest.raises(Unsupported, match=r"got fp8_e5m2: only vLLM's attention on a CPU keeps keys in it"):
        refuse_unsupported(deployed(engine(cache_config__cache_dtype="fp8_e5m2")))


@pytest.mark.parametrize(("capability", "served"), [((8, 0), False), ((8, 9), True), ((9, 0), True)])
def test_float8_keys_are_turned_on_gpus_that_have_float8(
    capability: tuple[int, int], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = DeviceCapability(*capability)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: False)
    monkeypatch.setattr(type(current_platform), "is_cuda", lambda _: True)
    monkeypatch.setattr(type(current_platform), "get_device_capability", lambda *_: found)
    refuse_unsupported(deployed(engine()))
    refuse_unsupported(deployed(engine(cache_config__cache_dtype="int8_per_token_head")))
    for kept in ("fp8", "fp8_per_token_head"):
        asked = deployed(engine(cache_config__cache_dtype=kept))
        refused = pytest.raises(Unsupported, match=rf"below 8\.9, got {kept} and 8\.0")
        with contextlib.nullcontext() if served else refused:
            refuse_unsupported(asked)


def test_float8_keys_with_the_attention_factor_are_not_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_rotary, "_capability", lambda: (9, 0))
    monkeypatch.setattr(fused_rotary, "reason_against_rotating", lambda _: None)

    def asked(cache_dtype: str, fused_keys: Any, **settings: Any) -> types.SimpleNamespace:
        made = deployed(engine(cache_config__cache_dtype=cache_dtype), **settings)
        choice = AttentionChoice(fused_rotary="on", fused_keys=fused_keys)
        made.additional_config[ATTENTION] = choice.to_mapping()
        return made

    for served in (asked("fp8", "pure"), asked("auto", "stock"), asked("fp8", "stock", on_crossing="pin")):
        refuse_moving_requests(served, Deployment.from_mapping(served.additional_config["posenc"]))
    refused = asked("fp8", "stock")
    with pytest.raises(Unsupported, match=r"attention\.fused_keys must be pure where float8 keys are re-rotated"):
        refuse_moving_requests(refused, Deployment.from_mapping(refused.additional_config["posenc"]))


def test_keys_that_our_kernels_lay_out_are_not_turned() -> None:
    turning = deployed(engine())
    turning.additional_config[ATTENTION] = AttentionChoice(backend="bias").to_mapping()
    with pytest.raises(
        Unsupported, match=r"attention\.backend must be auto or stock where keys are re-rotated, got bias"
    ):
        refuse_unsupported(turning)
    recomputed = deployed(engine(), on_crossing="recompute")
    recomputed.additional_config[ATTENTION] = AttentionChoice(backend="bias").to_mapping()
    refuse_unsupported(recomputed)


@pytest.mark.parametrize(
    ("rope_type", "own", "rule"),
    [
        ("yarn", "longrope", "whose own rope_type is default or yarn, but .* longrope: choose one of longrope$"),
        ("linear", "yarn", "whose own rope_type is default or linear, but this one's is yarn: choose one of yarn$"),
        ("ntk", "dynamic", "whose own rope_type is default, but this one's is dynamic: choose one of dynamic$"),
        ("llama3", "default", "own rope_type is llama3, but .* default: choose one of base, .*dynamic, .*yarn$"),
    ],
)
def test_a_method_that_is_not_for_a_checkpoint_is_refused(rope_type: str, own: str, rule: str) -> None:
    refuse_method(own, own)
    with pytest.raises(Unsupported, match=rule):
        refuse_method(rope_type, own)
    mismatched = deployed(engine(model_config__hf_text_config=config({"rope_type": own})))
    mismatched.additional_config["posenc"]["rope_type"] = rope_type
    with pytest.raises(Unsupported, match=rule):
        refuse_unsupported(mismatched)


def test_attention_is_not_made_to_rotate_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_rotary, "_capability", lambda: None)
    rotating = deployed(engine())
    rotating.additional_config[ATTENTION] = AttentionChoice(fused_rotary="on").to_mapping()
    with pytest.raises(Unsupported, match=r"attention\.fused_rotary must be auto or off, got on, because the kernel"):
        refuse_unsupported(rotating)


@pytest.mark.parametrize(("changed", "rule"), [*MOVING, *TURNING])
@pytest.mark.parametrize("settings", [{}, {"on_crossing": "pin", "prefix_reuse": "rerotate"}], ids=["cross", "reuse"])
def test_what_keys_cannot_be_turned_in_is_refused(settings: dict[str, Any], changed: dict[str, Any], rule: str) -> None:
    refuse_unsupported(deployed(engine(), **settings))
    with pytest.raises(Unsupported, match=rule):
        refuse_unsupported(deployed(engine(**changed), **settings))


@pytest.mark.parametrize(("changed", "rule"), TURNING)
def test_what_keys_cannot_be_turned_in_is_served_by_computing_them_again(changed: dict[str, Any], rule: str) -> None:
    refuse_unsupported(deployed(engine(**changed), on_crossing="recompute"))
    refuse_unsupported(deployed(engine(**changed, scheduler_config__scheduler_cls=None), on_crossing="pin"))


@pytest.mark.parametrize(("changed", "rule"), MOVING)
def test_what_crossings_do_not_allow_is_served_where_nobody_crosses(changed: dict[str, Any], rule: str) -> None:
    refuse_unsupported(deployed(engine(**changed), on_crossing="pin"))


def test_requests_with_priorities_need_our_scheduler_even_if_nobody_crosses() -> None:
    with_priorities = {"scheduler_config__policy": "priority"}
    refuse_unsupported(deployed(engine(**with_priorities), on_crossing="pin"))
    stock = engine(**with_priorities, scheduler_config__scheduler_cls=None)
    with pytest.raises(Unsupported, match=r"^scheduler_cls must be .* where scheduling_policy is priority, got None"):
        refuse_unsupported(deployed(stock, on_crossing="pin"))


def test_states_of_recurrent_layers_are_not_taken_over_from_another_scale() -> None:
    hybrid = deployed(engine(model_config__is_hybrid=True), prefix_reuse="rerotate")
    reused = Deployment.from_mapping(hybrid.additional_config["posenc"])
    with pytest.raises(Unsupported, match=r"^prefix_reuse must be exact for models with recurrent layers, got"):
        refuse_moving_requests(hybrid, reused)
    refuse_moving_requests(hybrid, dataclasses.replace(reused, prefix_reuse="exact"))


def test_prefixes_are_not_reused_where_none_are_kept() -> None:
    refuse_unsupported(deployed(engine(cache_config__enable_prefix_caching=False)))
    with pytest.raises(Unsupported, match=r"^prefix_reuse must be exact where enable_prefix_caching is false"):
        refuse_unsupported(deployed(engine(cache_config__enable_prefix_caching=False), prefix_reuse="rerotate"))


@pytest.mark.parametrize(
    "settings", [{}, {"on_crossing": "recompute"}, {"on_crossing": "pin", "prefix_reuse": "rerotate"}]
)
def test_prompts_that_are_read_in_both_directions_are_computed_once_and_whole(settings: dict[str, Any]) -> None:
    both_ways = {"model_config__architectures": ["HrmTextForCausalLM"], "model_config__hf_text_config": HrmTextConfig()}
    refuse_unsupported(deployed(engine(**both_ways), on_crossing="pin"))
    with pytest.raises(
        Unsupported, match=r"^on_crossing must be pin and prefix_reuse must be exact for HrmTextForCausalLM"
    ):
        refuse_unsupported(deployed(engine(**both_ways), **settings))


def test_models_with_recurrent_layers_cross_and_reuse_no_prefix_of_another_scale() -> None:
    for on_crossing in get_args(OnCrossing):
        refuse_unsupported(deployed(engine(model_config__is_hybrid=True), on_crossing=on_crossing))
    reusing = deployed(engine(model_config__is_hybrid=True), on_crossing="pin", prefix_reuse="rerotate")
    with pytest.raises(Unsupported, match=r"^prefix_reuse must be exact for models with recurrent layers, got"):
        refuse_unsupported(reusing)


def test_latents_are_served_unless_vllm_is_told_to_cache_keys_in_their_place() -> None:
    latents = {"model_config__architectures": ["SarvamMLAForCausalLM"]}
    latents |= {"model_config__hf_text_config": PreTrainedConfig(**SARVAM_MLA, rope_parameters=LLAMA)}
    refuse_unsupported(deployed(engine(**latents, model_config__use_mla=True)))
    with pytest.raises(Unsupported, match=r"^posenc does not serve multi-head latent attention \(MLA\) that vLLM runs"):
        refuse_unsupported(deployed(engine(**latents), on_crossing="pin"))


@pytest.mark.parametrize("kind", ["is_multimodal_model", "uses_mrope", "use_mla"])
def test_models_that_see_have_axes_or_cache_latents_are_served(kind: str) -> None:
    refuse_unsupported(deployed(engine(**{f"model_config__{kind}": True})))


@pytest.mark.parametrize(("longest", "asked"), [(513, None), (400, None), (400, 400), (513, -1)])
def test_an_engine_of_another_length_than_the_deployment_is_refused(longest: int, asked: int | None) -> None:
    lengths = {"model_config__max_model_len": longest, "model_config__original_max_model_len": asked}
    rule = rf"^max_model_len must be additional_config\.posenc\.max_model_len 512, .* got {longest}"
    with pytest.raises(Unsupported, match=rule):
        refuse_unsupported(deployed(engine(**lengths)))


def test_requests_may_end_where_the_memory_does() -> None:
    lengths = {"model_config__max_model_len": 400, "model_config__original_max_model_len": -1}
    refuse_unsupported(deployed(engine(**lengths)))


def test_a_shared_tier_has_no_float8_keys_whose_factor_may_lie_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    tier = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}
    beside = {"kv_transfer_config__kv_connector_extra_config": {"connectors": [tier]}}
    refuse_unsupported(deployed(engine(**beside)))
    with pytest.raises(Unsupported, match=r"^kv_cache_dtype must not be float8 where LMCacheMPConnector .* got fp8:"):
        refuse_unsupported(deployed(engine(**beside, cache_config__cache_dtype="fp8")))


@pytest.mark.parametrize(
    ("settings", "changed", "rule"),
    [
        ({"on_crossing": "pin"}, {}, r"on_crossing must be rerotate or recompute where NixlConnector .*, got pin:"),
        ({"prefix_reuse": "continue"}, {}, r"prefix_reuse must be exact where NixlConnector .*, got continue:"),
        ({}, {"cache_config__cache_dtype": "fp8"}, r"kv_cache_dtype must not be float8 where NixlConnector .* got fp8"),
        ({}, {"model_config__is_hybrid": True}, "NixlConnector must be left out where there are recurrent layers"),
        ({}, {"model_config__uses_mrope": True}, "NixlConnector must be left out where there are positions of images"),
    ],
    ids=["pinned", "reused", "float8", "recurrent", "M-RoPE"],
)
def test_keys_are_handed_over_only_where_their_scale_says_all_of_them(
    settings: dict[str, Any], changed: dict[str, Any], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    tier = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
    beside = {"kv_transfer_config__kv_connector_extra_config": {"connectors": [tier]}}
    crossing = {"on_crossing": "rerotate", "rerotate_budget_tokens": 64}
    refuse_unsupported(deployed(engine(**beside), **crossing))
    asked = {**crossing, **settings} if "on_crossing" not in settings else settings
    with pytest.raises(Unsupported, match=f"^{rule}"):
        refuse_unsupported(deployed(engine(**beside, **changed), **asked))


def test_offloading_in_the_place_of_our_connector_is_refused() -> None:
    offloading = {"cache_config__kv_offloading_size": 4.0, "kv_transfer_config__kv_connector": "OffloadingConnector"}
    with pytest.raises(Unsupported, match=r"needs kv_transfer_config\.kv_connector to be PosencConnector, got Offl"):
        refuse_unsupported(deployed(engine(**offloading)))


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("model_config__is_encoder_decoder", "encoder-decoder models"),
        ("parallel_config__use_ubatching", "enable_dbo, or ubatch_size above 1"),
        ("parallel_config__enable_elastic_ep", "enable_elastic_ep"),
    ],
)
def test_what_no_test_shows_to_be_right_is_refused_by_name(setting: str, what: str) -> None:
    with pytest.raises(Unsupported, match=f"^posenc does not serve {what}"):
        refuse_unsupported(deployed(engine(**{setting: True}), on_crossing="pin"))


def test_tokens_that_are_not_generated_one_by_one_are_refused() -> None:
    vllm_config = deployed(engine(), on_crossing="pin")
    vllm_config.diffusion_config = types.SimpleNamespace()
    with pytest.raises(Unsupported, match=r"^posenc does not serve diffusion_config"):
        refuse_unsupported(vllm_config)


@pytest.mark.parametrize("runner_type", ["pooling", "draft"])
def test_models_that_do_not_generate_are_refused(runner_type: str) -> None:
    with pytest.raises(Unsupported, match=r"^posenc does not serve pooling and draft models"):
        refuse_unsupported(deployed(engine(model_config__runner_type=runner_type), on_crossing="pin"))


def test_no_rotary_embedding_is_built_where_something_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    served = deployed(engine())
    monkeypatch.setattr("vllm.config.vllm.get_current_vllm_config_or_none", lambda: served)
    deployment = building.checked_deployment()
    assert deployment is not None and deployment.to_mapping() == served.additional_config["posenc"]
    served.model_config.is_encoder_decoder = True
    with pytest.raises(Unsupported, match="posenc does not serve encoder-decoder models"):
        building.checked_deployment()
