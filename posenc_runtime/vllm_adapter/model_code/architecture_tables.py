"""The page of the documentation with every architecture of the installed vLLM, and how its requests may cross."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping

from posenc_runtime.vllm_adapter.compat import versions
from posenc_runtime.vllm_adapter.model_code.verdicts import KINDS, Verdict, verdict

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
_SAID = {
    "rerotate": "`rerotate`, `recompute`, `pin`",
    "recompute, pin": "`recompute`, `pin`",
    "pin": "`pin`",
    "without scaling": "served without scaling",
    "at load": "known when it is loaded",
    "refused": "refused",
}
_HEAD = """# Model architectures

`make architectures` wrote this page from the sources of vLLM {version}. A test compares the two. [Models](models.md)
says what the settings mean, and what to do with models that are refused.

* **`rerotate`, `recompute`, `pin`**: each request has a scale, and `on_crossing` may be any of the three.
* **`recompute`, `pin`**: each request has a scale. `on_crossing: rerotate` is refused at start-up, and so is
  `prefix_reuse: rerotate`.
* **`pin`**: each request has a scale, which it keeps.
* **served without scaling**: the model's keys are not rotated, so there is nothing to scale. Leave `scaling` out.
* **known when it is loaded**: no source says it beforehand.
* **refused**: `posenc serve` and `posenc check` fail and name the reason. Serve these models with vLLM, without Posenc.

No checkpoint was loaded to write this page. When a worker has built a model, it asks the model how each layer rotates
its keys, and refuses what it does not find. Tests have run tiny checkpoints of the architectures in
[`tests/families`](https://github.com/posenc/posenc/blob/main/tests/families/README.md), no others.

## Coverage

Each name in vLLM's registry of models that generate text counts once, also where two names have the same class. Some
multimodal models take their language model from the checkpoint. Where a default of transformers or a file of vLLM names
the usual one, they count as that one. The others are known when they are loaded, and do not count as scaled.
"""


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


def page() -> str:
    """The page, in Markdown."""
    every = groups()
    lines = [_HEAD.format(version=versions.installed()), *_coverage(every)]
    for group in every:
        lines += ["", f"## {group.name}", "", *_table(group)]
    return "\n".join(lines) + "\n"


def _coverage(every: list[Group]) -> Iterator[str]:
    headings = "in vLLM", "with a scale for each request", "of these by `rerotate`"
    yield f"| Architectures | {' | '.join(headings)} | without scaling | known when it is loaded | refused |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for group in every:
        rest = (group.count(kind) for kind in ("without scaling", "at load", "refused"))
        figures = (len(group.verdicts), group.num_scaled, group.count("rerotate"), *rest)
        yield f"| {group.name} | {' | '.join(map(str, figures))} |"


def _table(group: Group) -> Iterator[str]:
    yield "| Architecture | `on_crossing` | Why, or when not |"
    yield "| --- | --- | --- |"
    by_kind = collections.defaultdict(list)
    for name, said in group.verdicts.items():
        by_kind[said.kind].append((name, said))
    for kind in KINDS:
        for name, said in sorted(by_kind[kind], key=lambda each: str.casefold(each[0])):
            yield f"| `{name}` | {_SAID[kind]} | {said.reason} |"
