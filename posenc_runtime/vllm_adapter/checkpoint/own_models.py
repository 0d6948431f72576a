"""The models that Posenc adds to vLLM."""

from __future__ import annotations

import functools
from typing import Any

from posenc_runtime.vllm_adapter.contract.names import ARCHITECTURES


@functools.cache
def register() -> None:
    """Register our architectures with vLLM, and their configurations with transformers. Decision 54.

    vLLM refuses MPT and Baichuan by name, because it once had them, but it looks for a registered model first.
    """
    from vllm.model_executor.models import ModelRegistry

    from posenc_runtime import decoder as model

    model.register()
    register_configurations()
    for architecture, where in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, where)


@functools.cache
def register_configurations() -> None:
    """Register our configurations with transformers, which is enough to read a checkpoint."""
    from transformers import AutoConfig

    from posenc_runtime.decoder.config import PosencConfig
    from posenc_runtime.vllm_adapter.checkpoint.baichuan_config import BaichuanConfig

    for config in (PosencConfig, BaichuanConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)


def refuse_variant(config: Any) -> None:
    """Check the configuration of a checkpoint of MPT or Baichuan; other checkpoints pass.

    Raises:
        Unsupported: when the variant is not served; the message names the key, its value and what to do.
    """
    from posenc_runtime.vllm_adapter.checkpoint import baichuan_config, mpt_rules

    rules = {"mpt": mpt_rules.refuse, "baichuan": baichuan_config.refuse}
    if rule := rules.get(getattr(config, "model_type", "")):
        rule(config)
