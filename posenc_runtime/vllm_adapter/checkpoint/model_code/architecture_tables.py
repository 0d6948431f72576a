"""Every architecture of a vLLM, and how its requests may cross, by its sources."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Self

from posenc_runtime.vllm_adapter.checkpoint.model_code.verdicts import Verdict, verdict
from posenc_runtime.vllm_adapter.releases import versions
from posenc_runtime.vllm_adapter.releases.unpacked import line_of_sources

# What architectures usually run that leave their language model to the checkpoint: only those for which a default of
# transformers' configuration, or a file of vLLM, says so. Of the others, no source tells before they are loaded.
USUAL_LANGUAGE_MODELS = {
    "Blip2ForConditionalGeneration": "OPTForCausalLM",
    "Cohere2VisionForConditionalGeneration": "Cohere2ForCausalLM",
    "DeepseekOCR2ForCausalLM": "DeepseekV2ForCausalLM",
    "DeepseekOCRForCausalLM": "DeepseekV2ForCausalLM",
    "DeepseekVLV2ForCausalLM": "DeepseekV2ForCausalLM",
    "Eagle2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "GraniteSpeechForConditionalGeneration": "GraniteForCausalLM",
    "GraniteSpeechPlusForConditionalGeneration": "GraniteForCausalLM",
    "HCXVisionV2ForCausalLM": "HyperCLOVAXForCausalLM",
    "InternVLChatModel": "Qwen2ForCausalLM",
    "InternVLForConditionalGeneration": "Qwen2ForCausalLM",
    "Lfm2VlForConditionalGeneration": "Lfm2ForCausalLM",
    "LightOnOCRForConditionalGeneration": "Qwen3ForCausalLM",
    "Llama_Nemotron_Nano_VL": "LlamaForCausalLM",
    "LlavaForConditionalGeneration": "LlamaForCausalLM",
    "LlavaNextForConditionalGeneration": "LlamaForCausalLM",
    "LlavaNextVideoForConditionalGeneration": "LlamaForCausalLM",
    "LlavaOnevisionForConditionalGeneration": "Qwen2ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
    "NemotronH_Nano_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "NemotronH_Nano_VL_V2": "NemotronHForCausalLM",
    "NemotronH_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "NemotronH_Super_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "OpenVLAForActionPrediction": "LlamaForCausalLM",
    "Ovis": "Qwen2ForCausalLM",
    "PaliGemmaForConditionalGeneration": "GemmaForCausalLM",
    "PixtralForConditionalGeneration": "MistralForCausalLM",
    "QianfanOCRForConditionalGeneration": "Qwen3ForCausalLM",
    "Step3VLForConditionalGeneration": "Step3TextForCausalLM",
    "UltravoxModel": "LlamaForCausalLM",
    "UnlimitedOCRForCausalLM": "DeepseekV2ForCausalLM",
    "VibeVoiceAsrForConditionalGeneration": "Qwen2ForCausalLM",
    "VoxtralForConditionalGeneration": "LlamaForCausalLM",
}
# Marks the line with another process's release.
_MARK = "posenc-architectures: "


@dataclasses.dataclass(frozen=True)
class Group:
    """Architectures of one kind, each with what its requests may do."""

    name: str
    verdicts: Mapping[str, Verdict]

    def count(self, *kinds: str) -> int:
        return sum(each.kind in kinds for each in self.verdicts.values())

    @property
    def num_scaled(self) -> int:
        return sum(each.scales for each in self.verdicts.values())


def groups() -> list[Group]:
    """The architectures of the installed vLLM that generate text."""
    from vllm.model_executor.models import registry

    names = {
        "Text": registry._TEXT_GENERATION_MODELS,
        "Multimodal": registry._MULTIMODAL_MODELS,
        "Transformers backend": registry._TRANSFORMERS_SUPPORTED_MODELS,
    }
    return [
        Group(name, {each: verdict(each, usual=USUAL_LANGUAGE_MODELS.get(each)) for each in architectures})
        for name, architectures in names.items()
    ]


@dataclasses.dataclass(frozen=True)
class Release:
    """The architectures of one vLLM.

    Attributes:
        version: the version that it states.
    """

    version: str
    groups: list[Group]

    @classmethod
    def of_this_process(cls) -> Self:
        """The vLLM that this process imports."""
        return cls(versions.installed_version(), groups())

    @classmethod
    def of_sources(cls, folder: pathlib.Path, device: str) -> Self:
        """The vLLM whose package lies in a folder; another process of this interpreter imports it.

        Args:
            device: ``cpu`` or ``cuda``: what this vLLM is told that it was built for.

        Raises:
            ValueError: when there is no vLLM, or it cannot be read; the message has the reason.
        """
        read = json.loads(
            line_of_sources(
                folder, device, "posenc_runtime.vllm_adapter.checkpoint.model_code", "--release", mark=_MARK
            )
        )
        found = [
            Group(each["name"], {name: Verdict(**said) for name, said in each["verdicts"].items()})
            for each in read["groups"]
        ]
        return cls(read["version"], found)

    def line(self) -> str:
        """The release in one line, for ``of_sources`` in another process to read."""
        return _MARK + json.dumps(dataclasses.asdict(self))
