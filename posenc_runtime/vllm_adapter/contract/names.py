"""Names that processes carry to each other: of our sections, in vLLM's configuration and in requests.

vLLM imports classes of ours by these names.
"""

from __future__ import annotations

CONNECTOR = "PosencConnector"
CONNECTOR_MODULE = "posenc_runtime.vllm_adapter.connector"
CONNECTOR_WITH_TIERS_MODULE = "posenc_runtime.vllm_adapter.connector_with_tiers"
# Connectors of vLLM by the names that users give them, and our module with a class of the same name for each: vLLM
# treats some connectors by their names.
LMCACHE, NIXL = "LMCacheMPConnector", "NixlConnector"
KEYED_CONNECTORS = "posenc_runtime.vllm_adapter.keyed_connectors"
SCHEDULER = "posenc_runtime.vllm_adapter.scheduler.PosencScheduler"
WORKER_EXTENSION = "posenc_runtime.vllm_adapter.worker_extension.PosencWorkerExtension"
FIT_INTO_MEMORY = -1  # vLLM's max_model_len for the longest request that the cache has room for
ON_CROSSING = "posenc_on_crossing"  # key of a request's vllm_xargs with which it asks for another on_crossing
# Key of vllm_xargs that our front end alone sets: the request asks for its prompt, and the token that vLLM makes for it
# is no part of the answer.
PROMPT_ALONE = "posenc_prompt_alone"
# Key of a request's ``extra_args`` that our code alone sets: the length at which it is admitted, and does not cross,
# because other requests of the same answer are as long.
ADMISSION_TOKENS = "posenc_admission_tokens"
# Key of a request's ``extra_args`` that our front end alone sets: the scale at which another engine has prefilled it.
PREFILLED_SCALE = "posenc_prefilled_scale"
FORCED_TOKENS = "posenc_runtime.vllm_adapter.forced_tokens:ForcedTokens"
FORCED_TOKEN_IDS = "forced_token_ids"  # key of vllm_xargs: what a request must say, where FORCED_TOKENS is loaded
_MODELS = "posenc_runtime.vllm_adapter.in_worker.models"
# Our models by the names that checkpoints have for them: module and class.
ARCHITECTURES = {
    "PosencForCausalLM": f"{_MODELS}.decoder:PosencForCausalLM",
    "MPTForCausalLM": f"{_MODELS}.mpt:MptForCausalLM",  # as MosaicML's own checkpoints say it
    "MptForCausalLM": f"{_MODELS}.mpt:MptForCausalLM",  # as transformers saves it
    "BaichuanForCausalLM": f"{_MODELS}.baichuan:BaichuanForCausalLM",  # 13B, Baichuan 2
    "BaiChuanForCausalLM": f"{_MODELS}.baichuan:BaichuanForCausalLM",  # 7B
}
# Our sections in ``additional_config``, which every process of an engine has in its configuration.
DEPLOYMENT_SECTION, ATTENTION_SECTION = "posenc", "posenc_attention"
ACCESS_SECTION, LIMITS_SECTION, HEALTH_SECTION = "posenc_access", "posenc_limits", "posenc_health"
ALL_SECTIONS = (DEPLOYMENT_SECTION, ATTENTION_SECTION, ACCESS_SECTION, LIMITS_SECTION, HEALTH_SECTION)
# By the names that a deployment's file has for the sections.
SECTION_KEYS = dict(zip(("scaling", "attention", "access", "limits", "health"), ALL_SECTIONS, strict=True))
