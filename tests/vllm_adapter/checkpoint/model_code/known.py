"""Written by hand from the sources of vLLM and transformers, for comparison with what our code finds in them.

Of a multimodal model, only its language model is written down. Whether that rotates is in the lists of text models.
"""

from __future__ import annotations

import importlib.util

# Models that rotate the keys of all layers, or of some, by one rotary embedding or by one for each kind of layer.
SCALED = {
    *("AfmoeForCausalLM", "AliceAIForCausalLM", "ApertusForCausalLM", "ArceeForCausalLM", "BailingMoeForCausalLM"),
    *("BailingMoeV2ForCausalLM", "DomynEdgeForCausalLM", "DoryForCausalLM"),
    *("ChatGLMForConditionalGeneration", "ChatGLMModel", "Cohere2ForCausalLM", "Cohere2MoeForCausalLM"),
    *("CohereForCausalLM", "CwmForCausalLM", "DbrxForCausalLM", "DeciLMForCausalLM", "DeepseekForCausalLM"),
    *("Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM", "Exaone4ForCausalLM", "ExaoneForCausalLM"),
    *("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM", "FalconForCausalLM", "FalconH1ForCausalLM", "GPTJForCausalLM"),
    *("GPTNeoXForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3nForCausalLM", "Gemma4ForCausalLM"),
    *("GemmaForCausalLM", "Glm4ForCausalLM", "Glm4MoeForCausalLM", "GlmForCausalLM", "GraniteForCausalLM"),
    *("GraniteMoeForCausalLM", "GraniteMoeHybridForCausalLM", "GraniteMoeSWAForCausalLM"),
    *("GraniteMoeSharedForCausalLM", "GraniteSWAForCausalLM", "HCXVisionV2ForCausalLM", "HrmTextForCausalLM"),
    *("HyperCLOVAXForCausalLM", "IQuestCoderForCausalLM", "IQuestLoopCoderForCausalLM", "InternLM2ForCausalLM"),
    *("InternLM3ForCausalLM", "Jais2ForCausalLM", "K2HorizonForCausalLM", "LLaMAForCausalLM", "LagunaForCausalLM"),
    *("Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Llama4ForCausalLM", "LlamaForCausalLM", "MellumForCausalLM"),
    *("MiMoForCausalLM", "MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiniCPM3ForCausalLM", "MiniCPMForCausalLM"),
    *("MiniMaxM2ForCausalLM", "Ministral3ForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
    *("MuseGlimmerForCausalLM", "NemotronForCausalLM", "OlmoHybridForCausalLM", "OlmoeForCausalLM"),
    *("OrionForCausalLM", "PanguEmbeddedForCausalLM", "PanguProMoEV2ForCausalLM", "Param2MoEForCausalLM"),
    *("Phi3ForCausalLM", "PhiForCausalLM", "PhiMoEForCausalLM", "Plamo3ForCausalLM", "Qwen2ForCausalLM"),
    *("Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM"),
    *("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Rnj1ForCausalLM", "SarvamMoEForCausalLM", "SeedOssForCausalLM"),
    *("SolarForCausalLM", "StableLmForCausalLM", "Step3TextForCausalLM", "Step3p5ForCausalLM"),
    *("TeleChat2ForCausalLM", "TeleChat3ForCausalLM", "TeleFLMForCausalLM", "Zamba2ForCausalLM"),
}
# Those that cache latents, where their configuration asks for it.
LATENT = {
    *("AXK1ForCausalLM", "BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM", "DeepseekV2ForCausalLM"),
    *("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM", "LongcatFlashForCausalLM", "LongcatFlashNgramForCausalLM"),
    *("MistralLarge3ForCausalLM", "PanguUltraMoEForCausalLM", "SarvamMLAForCausalLM"),
}
# No rotary embeddings: recurrent layers alone, or beside attention without positions; ALiBi; learned positions.
UNROTATED = {
    *("BloomForCausalLM", "FalconMambaForCausalLM", "GPT2LMHeadModel", "InklingForCausalLM"),
    *("InklingForConditionalGeneration", "JambaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM"),
    *("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "OPTForCausalLM", "Step1ForCausalLM"),
    # Its decoder of MBart's layers has no positions at all.
    "RadioMBartPrefixForCausalLM",
}

# Those whose sparse attention, or whose fused layer, reads the table of rotations itself.
READING = {
    *("BeamForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "FlintForCausalLM"),
    *("Glm5NextForCausalLM", "GlmMoeDsaForCausalLM", "Step5ForCausalLM"),
    *("HYV3ForCausalLM", "HYV4ForCausalLM", "KimiLinearForCausalLM", "MiniMaxM3SparseForCausalLM"),
    "Qwen4ExpForCausalLM",
}
# Its code rotates by YaRN, whatever the configuration says.
FIXED = {"GptOssForCausalLM"}
# A recurrent layer rotates what enters its state, or keys are normed after their rotation: only a new prefill changes
# the scale.
RECOMPUTED = {"BailingMoeV2_5ForCausalLM", "DoryForCausalLM"}
# Prompts are read in both directions.
PINNED = {"HrmTextForCausalLM"}

# The language model of models with images, video or sound, as their files build it or as a default says.
RUNS = {
    "Alpamayo2Super": "Qwen3ForCausalLM",
    "AriaForConditionalGeneration": "LlamaForCausalLM",
    "AudioFlamingo3ForConditionalGeneration": "Qwen2ForCausalLM",
    "BagelForConditionalGeneration": "Qwen2ForCausalLM",
    "Blip2ForConditionalGeneration": "OPTForCausalLM",
    "Cohere2VisionForConditionalGeneration": "Cohere2ForCausalLM",
    "Cosmos3ForConditionalGeneration": "Qwen3ForCausalLM",
    "DeepseekOCR2ForCausalLM": "DeepseekV2ForCausalLM",
    "DeepseekOCRForCausalLM": "DeepseekV2ForCausalLM",
    "DeepseekVLV2ForCausalLM": "DeepseekV2ForCausalLM",
    "DotsOCRForCausalLM": "Qwen2ForCausalLM",
    "Eagle2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Exaone4_5_ForConditionalGeneration": "Exaone4ForCausalLM",
    "FireRedASR2ForConditionalGeneration": "Qwen2ForCausalLM",
    "FunASRForConditionalGeneration": "Qwen3ForCausalLM",
    "FunAudioChatForConditionalGeneration": "Qwen3ForCausalLM",
    "GLM4VForCausalLM": "ChatGLMModel",
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma3nForConditionalGeneration": "Gemma3nForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": "Gemma4ForCausalLM",
    "Glm4vForConditionalGeneration": "Glm4ForCausalLM",
    "Glm4vMoeForConditionalGeneration": "Glm4MoeForCausalLM",
    "GlmAsrForConditionalGeneration": "LlamaForCausalLM",
    "GlmOcrForConditionalGeneration": "Glm4ForCausalLM",
    "Granite4VisionForConditionalGeneration": "GraniteForCausalLM",
    "GraniteSpeechForConditionalGeneration": "GraniteForCausalLM",
    "GraniteSpeechPlusForConditionalGeneration": "GraniteForCausalLM",
    "Idefics3ForConditionalGeneration": "LlamaForCausalLM",
    "InternS2MobiusForConditionalGeneration": "Qwen3_5ForCausalLM",
    "InternS2PreviewForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "InternVLChatModel": "Qwen2ForCausalLM",
    "InternVLForConditionalGeneration": "Qwen2ForCausalLM",
    "IsaacForConditionalGeneration": "Qwen3ForCausalLM",
    "KananaVForConditionalGeneration": "LlamaForCausalLM",
    "KeyeForConditionalGeneration": "Qwen3ForCausalLM",
    "KeyeVL1_5ForConditionalGeneration": "Qwen3ForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV2ForCausalLM",
    "KimiVLForConditionalGeneration": "DeepseekV2ForCausalLM",
    "Lfm2VlForConditionalGeneration": "Lfm2ForCausalLM",
    "LightOnOCRForConditionalGeneration": "Qwen3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Llama_Nemotron_Nano_VL": "LlamaForCausalLM",
    "LlavaForConditionalGeneration": "LlamaForCausalLM",
    "LlavaNextForConditionalGeneration": "LlamaForCausalLM",
    "LlavaNextVideoForConditionalGeneration": "LlamaForCausalLM",
    "LlavaOnevision2ForConditionalGeneration": "Qwen3ForCausalLM",
    "LlavaOnevisionForConditionalGeneration": "Qwen2ForCausalLM",
    "MiDashengLMModel": "Qwen2ForCausalLM",
    "MiMoV2OmniForCausalLM": "MiMoV2FlashForCausalLM",
    "MiniCPMO": "Qwen2ForCausalLM",
    "MiniCPMOcrForConditionalGeneration": "Qwen3_5ForCausalLM",
    "MiniCPMV": "MiniCPMForCausalLM",
    "MiniCPMV4_6ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "MiniCPMV4_7ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
    "MoonshotKimiaForCausalLM": "Qwen2ForCausalLM",
    "MossAudioModel": "Qwen3ForCausalLM",
    "MossTranscribeDiarizeForConditionalGeneration": "Qwen3ForCausalLM",
    "NemotronH_Nano_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "NemotronH_Nano_VL_V2": "NemotronHForCausalLM",
    "NemotronH_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "NemotronH_Super_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "OpenCUAForConditionalGeneration": "Qwen2ForCausalLM",
    "OpenVLAForActionPrediction": "LlamaForCausalLM",
    "Ovis": "Qwen2ForCausalLM",
    "PaddleOCRVLForConditionalGeneration": "Ernie4_5ForCausalLM",
    "PaliGemmaForConditionalGeneration": "GemmaForCausalLM",
    "Phi3VForCausalLM": "LlamaForCausalLM",
    "Phi4ForCausalLMV": "Phi3ForCausalLM",
    "Phi4MMForCausalLM": "LlamaForCausalLM",
    "PixtralForConditionalGeneration": "MistralForCausalLM",
    "QianfanOCRForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen2AudioForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5OmniForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5OmniModel": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen3ASRForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3ASRRealtimeGeneration": "Qwen3ForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "SmolVLMForConditionalGeneration": "LlamaForCausalLM",
    "Step3VLForConditionalGeneration": "Step3TextForCausalLM",
    "UltravoxModel": "LlamaForCausalLM",
    "UnlimitedOCRForCausalLM": "DeepseekV2ForCausalLM",
    "VoxtralForConditionalGeneration": "LlamaForCausalLM",
}
# Their files have a decoder of their own, whose attention calls `get_rope`.
OWN_DECODER = {
    *("CohereCompassForConditionalGeneration", "Cosmos3EdgeForConditionalGeneration", "HfMoondream"),
    *("Molmo2ForConditionalGeneration", "MolmoForCausalLM", "Moondream3ForCausalLM"),
    "MuseGlimmerForConditionalGeneration",
}
# The checkpoint names their language model, and no source has a default.
NAMED_BY_CHECKPOINT = {
    *("BeeForConditionalGeneration", "H2OVLChatModel", "InternS1ForConditionalGeneration", "NVLM_D", "Ovis2_5"),
    *("Ovis2_6ForCausalLM", "Ovis2_6_MoeForCausalLM", "RForConditionalGeneration", "SkyworkR1VChatModel"),
    *("Step3p7ForConditionalGeneration", "StepVLForConditionalGeneration"),
}
SEEING_REFUSED = {
    # sparse attention, or a fused layer, reads the table itself
    *("DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM", "Dots3NoteForCausalLM"),
    *("Glm5NextForConditionalGeneration", "KimiK3ForConditionalGeneration", "MiniMaxM3SparseForConditionalGeneration"),
    *("MuseSparkForConditionalGeneration", "Qwen4ExpForConditionalGeneration", "Step5ForConditionalGeneration"),
    # M-RoPE by a class of vLLM that is none of those with a table for each scale
    *("BailingMoeV3VLForConditionalGeneration", "Ernie4_5_VLMoeForConditionalGeneration"),
    "OpenPanguVLForConditionalGeneration",
    # Fourier position embeddings
    "InternS1ProForConditionalGeneration",
    # no decoder of one token after another
    "DiffusionGemmaForBlockDiffusion",
    # an encoder for sound that caches keys
    "VoxtralRealtimeGeneration",
    # an encoder and a decoder
    *("CohereAsrForConditionalGeneration", "NemotronParseForConditionalGeneration", "WhisperForConditionalGeneration"),
}

# Their attention in transformers norms keys, if at all, before `apply_rotary_pos_emb`.
TRANSFORMERS = {
    *("ArceeForCausalLM", "CwmForCausalLM", "Emu3ForConditionalGeneration", "FlexOlmoForCausalLM", "GlmForCausalLM"),
    *("GPTNeoXForCausalLM", "Jais2ForCausalLM", "MellumForCausalLM", "OlmoForCausalLM", "Olmo2ForCausalLM"),
    *("Olmo3ForCausalLM", "PhiForCausalLM", "SeedOssForCausalLM", "SmolLM3ForCausalLM", "Starcoder2ForCausalLM"),
    "VaultGemmaForCausalLM",
    # its language model, by default Qwen 2
    "VibeVoiceAsrForConditionalGeneration",
}
# A norm changes keys after their rotation.
TRANSFORMERS_RECOMPUTED = {"HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM"}
TRANSFORMERS_UNROTATED = {"GPTBigCodeForCausalLM"}
TRANSFORMERS_REFUSED = {"HunYuanVLForConditionalGeneration"}
# transformers does not have it: its code comes with the checkpoint.
TRANSFORMERS_UNKNOWN = {"NanbeigeForCausalLM"}
# New in transformers 5.20. It norms keys before it rotates them.
(TRANSFORMERS if importlib.util.find_spec("transformers.models.kolibri1") else TRANSFORMERS_UNKNOWN).add(
    "Kolibri1ForCausalLM"
)
