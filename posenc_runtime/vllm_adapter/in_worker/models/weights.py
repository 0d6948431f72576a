"""Refuses LoRA and quantised weights for our models, which load weights as they were trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.contract.errors import Unsupported

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def refuse_lora_and_quantised(vllm_config: VllmConfig) -> None:
    """Refuse what a model that loads weights as they were trained cannot do.

    Raises:
        Unsupported: naming the setting and its value.
    """
    architectures = ", ".join(vllm_config.model_config.architectures)
    if vllm_config.quant_config is not None:
        raise Unsupported(
            f"quantization must be left out for {architectures}, got {vllm_config.model_config.quantization}: posenc "
            "loads only weights that are not quantised. Choose a checkpoint without quantisation"
        )
    if vllm_config.lora_config is not None:
        raise Unsupported(
            f"enable_lora must be false for {architectures}, got true: posenc cannot apply LoRA adapters to this "
            "architecture. Merge them into the checkpoint"
        )
