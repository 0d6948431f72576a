"""Our names in vLLM's configuration and in requests. vLLM imports the classes by these names where it needs them."""

from __future__ import annotations

CONNECTOR = "PosencConnector"
CONNECTOR_MODULE = "posenc_runtime.vllm_adapter.connector"
SCHEDULER = "posenc_runtime.vllm_adapter.scheduler.PosencScheduler"
WORKER_EXTENSION = "posenc_runtime.vllm_adapter.worker_extension.PosencWorkerExtension"
ON_CROSSING = "posenc_on_crossing"  # key of a request's vllm_xargs with which it asks for another on_crossing
FORCED_TOKENS = "posenc_runtime.vllm_adapter.forced_tokens:ForcedTokens"
FORCED_TOKEN_IDS = "forced_token_ids"  # key of vllm_xargs: what a request must say, where FORCED_TOKENS is loaded
