"""Checks of an engine's start that read more than its arguments: the checkpoint, its layers, how they are cached."""

from __future__ import annotations

import types
from typing import Any

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import SchedulerHalf
from posenc_runtime.vllm_adapter.in_worker.models.weights import refuse_lora_and_quantised
from posenc_runtime.vllm_adapter.settings.completion import _refuse_disabled_window
from tests.combinations.asking import LONGEST


def disabled_window(deployment: Deployment) -> None:
    checkpoint: Any = types.SimpleNamespace(sliding_window=LONGEST // 4, architecture="MistralForCausalLM")
    _refuse_disabled_window({"disable_sliding_window": True}, checkpoint, deployment.max_model_len)


def layers_that_no_scale_changes(deployment: Deployment) -> None:
    half = SchedulerHalf(deployment, [32, 32], num_blocks=64)
    half.set_scaled_groups(frozenset({0}))


def adapters_of_mpt(_: Deployment) -> None:
    model = types.SimpleNamespace(architectures=["MPTForCausalLM"], quantization=None)
    vllm_config: Any = types.SimpleNamespace(model_config=model, quant_config=None, lora_config=object())
    refuse_lora_and_quantised(vllm_config)


def quantised_mpt(_: Deployment) -> None:
    model = types.SimpleNamespace(architectures=["MPTForCausalLM"], quantization="awq")
    vllm_config: Any = types.SimpleNamespace(model_config=model, quant_config=object(), lora_config=None)
    refuse_lora_and_quantised(vllm_config)
