"""What ``posenc check`` makes of the 60 checkpoints that are served most, where ``auto`` chooses method and scales."""

from __future__ import annotations

import json
import pathlib

import pytest

from posenc_runtime.vllm_adapter.settings.plan import Plan
from posenc_runtime.vllm_adapter.settings.section import ScalingSettings, SettingRefused
from server.deployment.settings import Settings
from server.start_up.planning import plan_settings
from tests.checkpoints import save_weights
from tests.most_served import CONFIGURATIONS
from tests.server.command import run

# The trained length, tokens, and the method that scales past it.
SERVED = {
    "meta-llama/Llama-2-7b-chat-hf": (4096, "yarn"),
    "meta-llama/Meta-Llama-3-8B-Instruct": (8192, "yarn"),
    "meta-llama/Llama-3.1-8B-Instruct": (131072, "llama3"),
    "meta-llama/Llama-3.2-1B-Instruct": (131072, "llama3"),
    "meta-llama/Llama-3.2-3B-Instruct": (131072, "llama3"),
    "meta-llama/Llama-3.3-70B-Instruct": (131072, "llama3"),
    "Qwen/Qwen2.5-7B-Instruct": (32768, "yarn"),
    "Qwen/Qwen2.5-32B": (131072, "yarn"),
    "Qwen/Qwen2.5-VL-7B-Instruct": (128000, "yarn"),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (131072, "yarn"),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": (131072, "yarn"),
    "Qwen/Qwen3-0.6B": (40960, "yarn"),
    "Qwen/Qwen3-4B": (40960, "yarn"),
    "Qwen/Qwen3-8B": (40960, "yarn"),
    "Qwen/Qwen3-32B": (40960, "yarn"),
    "Qwen/Qwen3-30B-A3B": (40960, "yarn"),
    "Qwen/Qwen3-30B-A3B-Thinking-2507": (262144, "yarn"),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": (262144, "yarn"),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (262144, "yarn"),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (262144, "yarn"),
    "Qwen/Qwen3-VL-8B-Instruct": (262144, "yarn"),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": (262144, "yarn"),
    "Qwen/Qwen3.5-9B": (262144, "yarn"),
    "Qwen/Qwen3.5-397B-A17B": (262144, "yarn"),
    "Qwen/Qwen3.6-27B": (262144, "yarn"),
    "mistralai/Mistral-7B-Instruct-v0.3": (32768, "yarn"),
    "mistralai/Mistral-Nemo-Base-2407": (128000, "yarn"),
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": (131072, "yarn"),
    "mistralai/Ministral-3-8B-Instruct-2512": (262144, "yarn"),
    "mistralai/Devstral-2-123B-Instruct-2512": (262144, "yarn"),
    "mistralai/Devstral-Small-2-24B-Instruct-2512": (393216, "yarn"),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (32768, "yarn"),
    "google/gemma-2-9b-it": (8192, "yarn"),
    "google/gemma-3-1b-it": (32768, "yarn"),
    "google/gemma-3-27b-it": (131072, "linear"),
    "google/gemma-4-E4B-it": (131072, "yarn"),
    "google/gemma-4-26B-A4B-it": (262144, "yarn"),
    "google/gemma-4-31B-it": (262144, "yarn"),
    "microsoft/phi-4": (16384, "yarn"),
    "openai/gpt-oss-20b": (131072, "yarn"),
    "openai/gpt-oss-120b": (131072, "yarn"),
    "deepseek-ai/DeepSeek-R1": (163840, "yarn"),
    "deepseek-ai/DeepSeek-V3.1": (163840, "yarn"),
    "moonshotai/Kimi-K2-Instruct": (131072, "yarn"),
    "moonshotai/Kimi-K2.5": (262144, "yarn"),
    "zai-org/GLM-4.5": (131072, "yarn"),
    "MiniMaxAI/MiniMax-M2.5": (196608, "yarn"),
    "XiaomiMiMo/MiMo-V2-Flash": (262144, "yarn"),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": (524288, "yarn"),
    "allenai/Olmo-3.1-32B-Instruct": (65536, "yarn"),
    "LiquidAI/LFM2.5-1.2B-Instruct": (128000, "yarn"),
}
# They rotate only layers with a window or with chunks. The trained length, and what a query sees there, tokens.
BOUNDED = {
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (10485760, 8192),
    "LGAI-EXAONE/EXAONE-4.0-32B": (131072, 4096),
}
# Their short factors are for the length before they were tuned, and their long ones for 32 times as much.
LONGROPE = {"microsoft/Phi-3.5-mini-instruct": 4096, "microsoft/Phi-4-mini-instruct": 4096}
# Attention without rotary embeddings beside recurrent layers, although its configuration has a rope_theta.
UNROTATED = {"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 262144}
# Their queries see older chunks at a bounded distance: the length that needs no chunks, and the longest, tokens.
CHUNKED = {"Qwen/Qwen2.5-7B-Instruct-1M": (262144, 1010000)}
# How the refusal begins, and what it says to do.
REFUSED = {
    **{
        name: (f"model: posenc does not serve {architecture}: ", "Serve it with vLLM, without posenc")
        for name, architecture in {
            "deepseek-ai/DeepSeek-V3.2": "DeepseekV32ForCausalLM",
            "deepseek-ai/DeepSeek-V4-Flash": "DeepseekV4ForCausalLM",
            "zai-org/GLM-5": "GlmMoeDsaForCausalLM",
        }.items()
    },
}


def plan_of(name: str, folder: pathlib.Path, max_model_len: int | None = None) -> Plan:
    (folder / "config.json").write_text(json.dumps(CONFIGURATIONS[name]))
    settings = Settings(model=str(folder), scaling=ScalingSettings(rope_type="auto"), max_model_len=max_model_len)
    return plan_settings(settings)


def test_there_is_a_verdict_on_each_of_sixty_checkpoints() -> None:
    verdicts = [*SERVED, *BOUNDED, *LONGROPE, *UNROTATED, *CHUNKED, *REFUSED]
    assert sorted(verdicts) == sorted(CONFIGURATIONS) and len(verdicts) == 60


@pytest.mark.parametrize("name", SERVED)
def test_most_are_scaled_past_the_length_that_they_were_trained_on(name: str, tmp_path: pathlib.Path) -> None:
    plan, (trained, rope_type) = plan_of(name, tmp_path), SERVED[name]
    assert (plan.deployment.original_max_position_embeddings, plan.deployment.rope_type) == (trained, rope_type)
    assert (plan.deployment.scales, plan.deployment.on_crossing) == ((1.0, 2.0, 4.0), "rerotate")
    [remark] = plan.remarks
    assert remark.startswith("auto: the checkpoint's own ro")


@pytest.mark.parametrize("name", BOUNDED)
def test_where_no_rotated_distance_grows_nothing_is_scaled(name: str, tmp_path: pathlib.Path) -> None:
    trained, window = BOUNDED[name]
    for asked in (None, 4 * trained):
        plan = plan_of(name, tmp_path, asked)
        assert (plan.deployment.rope_type, plan.deployment.scales) == ("llama3", (1.0,))
        assert plan.deployment.max_model_len == (asked or trained)
        [remark] = plan.remarks
        assert remark.startswith(
            f"auto: no layer that rotates sees more than {window} tokens, however long a request is"
        )


@pytest.mark.parametrize("name", LONGROPE)
def test_short_requests_have_short_factors(name: str, tmp_path: pathlib.Path) -> None:
    deployment = plan_of(name, tmp_path).deployment
    assert (deployment.original_max_position_embeddings, deployment.rope_type) == (LONGROPE[name], "longrope")
    assert deployment.scales == (1.0, 32.0)


@pytest.mark.parametrize("name", UNROTATED)
def test_what_has_no_rotary_embeddings_is_served_unscaled(name: str, tmp_path: pathlib.Path) -> None:
    plan = plan_of(name, tmp_path)
    assert (plan.deployment.rope_type, plan.deployment.scales) == ("none", (1.0,))
    assert plan.deployment.max_model_len == UNROTATED[name]


@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_are_those_of_the_checkpoint(name: str, tmp_path: pathlib.Path) -> None:
    deployment, (trained, longest) = plan_of(name, tmp_path).deployment, CHUNKED[name]
    assert (deployment.rope_type, deployment.original_max_position_embeddings) == ("dual_chunk", trained)
    pages = deployment.pages(16)
    assert (pages.page, pages.distance, pages.tempered_from) == (262144 - 8192, 262144, 262144)
    assert deployment.max_model_len == longest


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_to_do(name: str, tmp_path: pathlib.Path) -> None:
    begins, advice = REFUSED[name]
    with pytest.raises(SettingRefused) as caught:
        plan_of(name, tmp_path)
    assert str(caught.value).startswith(begins) and advice in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("google/gemma-4-31B-it", "trained on 262144 tokens, serves 1048576; yarn at scales 1, 2, 4"),
        ("microsoft/Phi-3.5-mini-instruct", "trained on 4096 tokens, serves 131072; longrope at scales 1, 32"),
        ("LGAI-EXAONE/EXAONE-4.0-32B", "trained on 131072 tokens, serves 131072; llama3 at scales 1"),
        (*UNROTATED, "no rotary embeddings, so nothing is scaled; serves 262144 tokens"),
        ("zai-org/GLM-5", "refused model: posenc does not serve GlmMoeDsaForCausalLM: "),
    ],
)
def test_the_command_says_the_same(name: str, said: str, tmp_path: pathlib.Path) -> None:
    model = save_weights(tmp_path / "model", CONFIGURATIONS[name], {})
    status, out, err = run(tmp_path, {"model": str(model), "scaling": {"rope_type": "auto"}}, "check")
    assert status == (2 if name in REFUSED else 0)
    assert said in (err if name in REFUSED else out)
