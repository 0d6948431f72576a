"""The names of our metrics: dashboards, alerts and scripts of users ask for them."""

from __future__ import annotations

import enum

PREFIX = "posenc_"


class Metric(enum.StrEnum):
    """Every metric that we register, as ``/metrics`` shows it; a histogram's series add a suffix."""

    REQUESTS = "posenc_requests_total"
    PROMPT_TOKENS = "posenc_prompt_tokens_total"
    GENERATION_TOKENS = "posenc_generation_tokens_total"
    PREFIX_HIT_TOKENS = "posenc_prefix_hit_tokens_total"
    CROSSINGS = "posenc_crossings_total"
    REROTATED_TOKENS = "posenc_rerotated_tokens_total"
    COPIED_BLOCKS = "posenc_copied_blocks_total"
    WINDOW_KV_BLOCKS_READ = "posenc_window_kv_blocks_read_total"
    WINDOW_KV_BLOCKS_SKIPPED = "posenc_window_kv_blocks_skipped_total"
    PREFIX_REUSED_TOKENS = "posenc_prefix_reused_tokens_total"
    APPLY_SECONDS = "posenc_apply_seconds"
    REROTATE_SECONDS = "posenc_rerotate_seconds"
    CROSSING_WAIT_SECONDS = "posenc_crossing_wait_seconds"
    KV_BLOCKS = "posenc_kv_blocks"
    PREFILL_TOKENS = "posenc_prefill_tokens"
    REROTATE_BUDGET_TOKENS = "posenc_rerotate_budget_tokens"
    COPE_SATURATION_RATIO = "posenc_cope_saturation_ratio"
    STRATEGY_INFO = "posenc_strategy_info"
    READY = "posenc_ready"
    REFUSED_REQUESTS = "posenc_refused_requests_total"
    ATTENTION_BACKEND_INFO = "posenc_attention_backend_info"


class StockMetric(enum.StrEnum):
    """vLLM's metrics that we show beside ours, as ``/metrics`` shows them; a histogram's series add a suffix."""

    SUCCEEDED = "vllm:request_success_total"
    PROMPT_TOKENS = "vllm:prompt_tokens_total"
    GENERATION_TOKENS = "vllm:generation_tokens_total"
    PREFIX_HIT_TOKENS = "vllm:prefix_cache_hits_total"
    RUNNING = "vllm:num_requests_running"
    WAITING = "vllm:num_requests_waiting"
    KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
    PREEMPTIONS = "vllm:num_preemptions_total"
    FIRST_TOKEN_SECONDS = "vllm:time_to_first_token_seconds"
    BETWEEN_TOKENS_SECONDS = "vllm:inter_token_latency_seconds"
