"""Every internal name of vLLM that we use, by the process that uses it."""

from __future__ import annotations

# Module, attribute path, and the parameters or attributes that must be there.
Names = tuple[tuple[str, str, tuple[str, ...]], ...]

# Used by every process of an engine. The parameters are those that we pass or override.
ENGINE_NAMES: Names = (
    ("vllm.config.vllm", "get_current_vllm_config_or_none", ()),
    ("vllm.model_executor.custom_op", "CustomOp.register_oot", ("name",)),
    ("vllm.model_executor.layers.rotary_embedding.base", "RotaryEmbedding._compute_cos_sin_cache", ("self",)),
    ("vllm.model_executor.layers.rotary_embedding.base", "RotaryEmbedding._compute_inv_freq", ("self", "base")),
    ("vllm.model_executor.layers.rotary_embedding.base", "RotaryEmbedding.forward_native", ("positions", "query")),
    ("vllm.model_executor.layers.rotary_embedding.base", "RotaryEmbedding.forward_cuda", ("positions", "query")),
    ("vllm.model_executor.layers.rotary_embedding.base", "RotaryEmbedding.forward_cpu", ("positions", "query")),
    ("vllm.model_executor.layers.rotary_embedding", "Phi3LongRoPEScaledRotaryEmbedding", ()),
    (
        "vllm.model_executor.layers.rotary_embedding.phi3_long_rope_scaled_rope",
        "Phi3LongRoPEScaledRotaryEmbedding._compute_cos_sin_cache",
        ("max_position_embeddings", "rescale_factors", "mscale"),
    ),
    ("vllm.model_executor.model_loader.default_loader", "DefaultModelLoader.load_weights", ("model", "model_config")),
    ("vllm.model_executor.layers.linear", "UnquantizedLinearMethod", ()),
    ("vllm.model_executor.layers.vocab_parallel_embedding", "UnquantizedEmbeddingMethod", ()),
    ("vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method", "UnquantizedFusedMoEMethod", ()),
    ("vllm.forward_context", "get_forward_context", ()),
    ("vllm.forward_context", "is_forward_context_available", ()),
    ("vllm.forward_context", "ForwardContext", ("slot_mapping", "additional_kwargs")),
    ("vllm.utils.torch_utils", "direct_register_custom_op", ("op_name", "op_func", "fake_impl")),
    ("vllm.distributed.kv_transfer.kv_connector.v1.base", "SupportsHMA.request_finished_all_groups", ("request",)),
    ("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1.on_new_request", ("request",)),
    ("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1.register_kv_caches", ("kv_caches",)),
    (
        "vllm.distributed.kv_transfer.kv_connector.v1.base",
        "KVConnectorBase_V1.bind_connector_metadata",
        ("connector_metadata",),
    ),
    ("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1.requires_kv_delivery", ()),
    ("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1.get_handshake_metadata", ("self",)),
    (
        "vllm.distributed.kv_transfer.kv_connector.v1.base",
        "KVConnectorBase_V1.set_xfer_handshake_metadata_pp_aware",
        ("metadata",),
    ),
    ("vllm.distributed.kv_transfer", "get_kv_transfer_group", ()),
    (
        "vllm.distributed.kv_transfer.kv_connector.utils",
        "KVOutputAggregator.from_connector",
        ("connector", "world_size"),
    ),
    (
        "vllm.v1.executor.multiproc_executor",
        "MultiprocExecutor.collective_rpc",
        ("unique_reply_rank", "kv_output_aggregator"),
    ),
    ("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1.get_kv_connector_stats", ("self",)),
    ("vllm.distributed.kv_transfer.kv_connector.v1.metrics", "KVConnectorStats.aggregate", ("other",)),
    ("vllm.distributed.kv_transfer.kv_connector.v1.metrics", "KVConnectorPromMetrics.observe", ("engine_idx",)),
    ("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1.bind_kv_cache_manager", ("self",)),
    ("vllm.v1.request", "Request.update_block_hashes", ("self",)),
    ("vllm.v1.core.sched.scheduler", "Scheduler.schedule", ("throttle_prefills",)),
    (
        "vllm.v1.core.sched.scheduler",
        "Scheduler._reserve_prefill_lookahead",
        ("request", "num_computed_tokens", "num_new_tokens"),
    ),
    ("vllm.v1.core.sched.scheduler", "Scheduler._get_local_prefix_cache_hit", ("request",)),
    ("vllm.v1.core.sched.scheduler", "Scheduler._preempt_request", ("request", "timestamp", "drop_stale_output")),
    ("vllm.v1.core.sched.scheduler", "Scheduler._request_blocks_can_be_freed", ("request",)),
    (
        "vllm.v1.core.sched.scheduler",
        "Scheduler.reset_prefix_cache",
        ("reset_running_requests", "reset_connector"),
    ),
    ("vllm.v1.core.sched.scheduler", "Scheduler._update_after_schedule", ("scheduler_output",)),
    ("vllm.v1.core.sched.scheduler", "Scheduler._update_request_with_output", ("request", "new_token_ids", "is_stale")),
    ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler._update_after_schedule", ("scheduler_output",)),
    (
        "vllm.v1.core.sched.async_scheduler",
        "AsyncScheduler._update_request_with_output",
        ("request", "new_token_ids", "is_stale"),
    ),
    ("vllm.v1.core.sched.scheduler", "Scheduler._free_request", ("request", "delay_free_blocks")),
    ("vllm.v1.core.sched.scheduler", "Scheduler._build_kv_connector_meta", ("connector", "scheduler_output")),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager.create_kv_cache_blocks", ("blocks",)),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager.prefix_cache_lookup_enabled", ("request",)),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager.get_block_ids", ("request_id",)),
    (
        "vllm.v1.core.kv_cache_manager",
        "KVCacheManager.remove_skipped_blocks",
        ("request_id", "processed_computed_tokens", "num_prompt_tokens"),
    ),
    (
        "vllm.v1.core.kv_cache_coordinator",
        "KVCacheCoordinator.get_num_blocks_to_allocate",
        (
            *("request_id", "num_tokens", "new_computed_blocks", "num_encoder_tokens", "total_computed_tokens"),
            *("num_local_computed_tokens", "num_tokens_main_model"),
        ),
    ),
    (
        "vllm.v1.core.kv_cache_coordinator",
        "KVCacheCoordinator.find_longest_cache_hit",
        ("block_hashes", "max_cache_hit_length"),
    ),
    ("vllm.v1.core.block_pool", "BlockPool.get_new_blocks", ("num_blocks",)),
    ("vllm.v1.core.block_pool", "BlockPool.free_blocks", ("ordered_blocks",)),
    ("vllm.v1.core.block_pool", "BlockPool.touch", ("blocks",)),
    ("vllm.v1.request", "RequestStatus.WAITING_FOR_REMOTE_KVS", ()),
    ("vllm.v1.core.block_pool", "BlockPool.evict_blocks", ("block_ids",)),
    ("vllm.v1.core.block_pool", "BlockPool.get_num_free_blocks", ("self",)),
    ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl.forward", ("query", "attn_metadata", "output")),
    ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl.do_kv_cache_update", ("key", "slot_mapping")),
    ("vllm.v1.attention.backends.cpu_attn", "_get_attn_isa", ("dtype", "block_size", "head_size", "kv_cache_dtype")),
    ("vllm.v1.attention.selector", "get_attn_backend", ("head_size", "dtype", "kv_cache_dtype", "use_mla")),
    (
        "vllm._custom_ops",
        "cpu_attn_get_scheduler_metadata",
        ("num_reqs", "num_heads", "num_kv_heads", "head_dim", "sliding_window_size", "isa", "kv_cache_dtype"),
    ),
    (
        "vllm._custom_ops",
        "cpu_attn_reshape_and_cache",
        ("key", "value", "key_cache", "value_cache", "slot_mapping", "isa", "k_scale", "v_scale", "kv_cache_dtype"),
    ),
    ("vllm.v1.attention.backends.triton_attn", "TritonAttentionImpl.forward", ("query", "attn_metadata", "output")),
    ("vllm.v1.attention.backends.triton_attn", "TritonAttentionImpl.do_kv_cache_update", ("key", "slot_mapping")),
    ("vllm.v1.attention.backends.triton_attn", "TritonAttentionMetadataBuilder.build", ("common_attn_metadata",)),
    ("vllm.v1.attention.backends.flash_attn", "FlashAttentionImpl.forward", ("query", "attn_metadata", "output")),
    ("vllm.v1.attention.backends.flash_attn", "FlashAttentionImpl.do_kv_cache_update", ("key", "slot_mapping")),
    ("vllm.v1.attention.backends.flash_attn", "FlashAttentionMetadataBuilder.build", ("common_attn_metadata",)),
    (
        "vllm.v1.attention.backends.flash_attn",
        "FlashAttentionMetadataBuilder.get_cudagraph_support",
        ("vllm_config", "kv_cache_spec"),
    ),
    ("vllm.v1.attention.backend", "CommonAttentionMetadata", ("positions", "slot_mapping", "num_actual_tokens")),
    ("vllm.v1.attention.backend", "AttentionImplBase.process_weights_after_loading", ("act_dtype",)),
    ("vllm.v1.kv_cache_interface", "UniformTypeKVCacheSpecs", ("kv_cache_specs",)),
    ("vllm.v1.attention.backends.registry", "AttentionBackendEnum.CPU_ATTN", ()),
    ("vllm.v1.attention.backends.registry", "AttentionBackendEnum.FLASH_ATTN", ()),
    ("vllm.v1.attention.backends.registry", "AttentionBackendEnum.TRITON_ATTN", ()),
    ("vllm.v1.attention.backends.registry", "AttentionBackendEnum.CUSTOM", ()),
    ("vllm.v1.attention.backends.registry", "register_backend", ("backend", "class_path")),
    ("vllm.v1.core.sched.output", "SchedulerOutput", ("scheduled_new_reqs", "preempted_req_ids")),
    ("vllm.v1.core.sched.output", "CachedRequestData", ("resumed_req_ids", "new_block_ids", "num_output_tokens")),
    (
        "vllm.transformers_utils.config",
        "get_config",
        (
            *("model", "trust_remote_code", "revision", "code_revision", "config_format", "hf_overrides_kw"),
            *("hf_overrides_fn",),
        ),
    ),
    ("vllm.transformers_utils.config", "get_hf_text_config", ("config",)),
    ("vllm.config", "VllmConfig.num_speculative_tokens", ()),
    ("vllm.config", "SpeculativeConfig.use_gemma4_mtp", ("self",)),
    ("vllm.config", "SpeculativeConfig.use_multi_module_mtp", ("self",)),
)

# Used only by the process with the HTTP routes; importing these modules takes seconds.
SERVER_NAMES: Names = (
    ("vllm.model_executor.models.registry", "ModelRegistry.models", ()),
    ("vllm.config.model", "ModelConfig.using_transformers_backend", ("self",)),
    ("vllm.config.model", "ModelConfig.try_get_generation_config", ("self",)),
    ("vllm.engine.arg_utils", "AsyncEngineArgs.create_engine_config", ("usage_context",)),
    ("vllm.plugins", "load_endpoint_plugins", ("supported_tasks",)),
    ("vllm.multimodal.media.connector", "MediaConnector._assert_url_in_allowed_media_domains", ("url_spec",)),
    ("vllm.multimodal.media.connector", "MediaConnector._load_file_url", ("url_spec", "media_io")),
    ("vllm.entrypoints.cli.serve", "ServeSubcommand.cmd", ("args",)),
    ("vllm.tokenizers.registry", "cached_tokenizer_from_config", ("model_config",)),
    ("vllm.utils.system_utils", "kill_process_tree", ("pid",)),
    (
        "vllm.v1.engine.output_processor",
        "OutputProcessor.do_tracing",
        ("engine_core_output", "req_state", "iteration_stats"),
    ),
    ("vllm.v1.engine.output_processor", "instrument_manual", ("attributes",)),
    ("vllm.v1.engine.output_processor", "OutputProcessor.abort_requests", ("request_ids", "internal")),
    (
        "vllm.v1.engine.output_processor",
        "RequestState.make_request_output",
        ("new_token_ids", "finish_reason", "kv_transfer_params"),
    ),
    ("vllm.v1.engine.parallel_sampling", "ParentRequest.n", ()),
    (
        "vllm.entrypoints.generate.beam_search.online",
        "BeamSearchOnlineMixin.beam_search",
        ("prompt", "request_id", "params"),
    ),
    (
        "vllm.entrypoints.generate.generative_scoring.serving",
        "ServingGenerativeScoring.create_generative_scoring",
        ("request",),
    ),
    ("vllm.v1.engine.async_llm", "AsyncLLM.add_request", ("request_id",)),
    ("vllm.v1.engine.async_llm", "AsyncLLM.get_tokenizer", ()),
    ("vllm.v1.engine.core_client", "AsyncMPClient._call_utility_async", ("method", "engine")),
    ("vllm.v1.engine.core", "EngineCoreProc.run_engine_core", ()),
    ("vllm.v1.executor.multiproc_executor", "WorkerProc.worker_main", ()),
    ("vllm.v1.engine.coordinator", "DPCoordinatorProc.run_coordinator", ()),
    ("vllm.v1.utils", "run_api_server_worker_proc", ("listen_address", "sock", "args")),
    (
        "vllm.entrypoints.openai.completion.serving",
        "OpenAIServingCompletion.completion_stream_generator",
        ("result_generator",),
    ),
    (
        "vllm.entrypoints.openai.completion.serving",
        "OpenAIServingCompletion.request_output_to_completion_response",
        ("final_res_batch",),
    ),
    ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest.normalize_null_max_tokens", ()),
    ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest.to_sampling_params", ("max_tokens",)),
    ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest.to_sampling_params", ("max_tokens",)),
    ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest.to_beam_search_params", ("max_tokens",)),
    (
        "vllm.entrypoints.openai.chat_completion.protocol",
        "ChatCompletionRequest.to_beam_search_params",
        ("max_tokens",),
    ),
    (
        "vllm.entrypoints.openai.responses.protocol",
        "ResponsesRequest.to_sampling_params",
        ("default_max_tokens",),
    ),
    (
        "vllm.entrypoints.openai.chat_completion.serving",
        "OpenAIServingChat.chat_completion_stream_generator",
        ("result_generator",),
    ),
    (
        "vllm.entrypoints.openai.chat_completion.batch_serving",
        "OpenAIServingChatBatch.chat_completion_full_generator_batch",
        ("request", "generators"),
    ),
    (
        "vllm.entrypoints.anthropic.serving",
        "AnthropicServingMessages.message_stream_converter",
        ("generator",),
    ),
)

# Used only by the process with the scheduler.
CORE_NAMES: Names = (
    ("vllm.v1.engine.core", "EngineCore.preprocess_add_request", ("request",)),
    ("vllm.utils", "length_from_prompt_token_ids_or_embeds", ("prompt_token_ids", "prompt_embeds")),
)

# Used only by a worker on the CPU, which has imported the module already.
CPU_RUNNER_NAMES: Names = (
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.sample_tokens", ("grammar_output",)),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._dummy_run", ("num_tokens",)),
    ("vllm.v1.worker.cpu_model_runner", "CPUModelRunner.sample_tokens", ("grammar_output",)),
    ("vllm.v1.worker.gpu_worker", "Worker.load_model", ("load_dummy_weights",)),
    ("vllm.v1.worker.gpu_worker", "Worker.initialize_from_config", ("kv_cache_config",)),
    ("vllm.v1.worker.gpu_worker", "Worker.get_kv_cache_spec", ("self",)),
    ("vllm.v1.worker.gpu_worker", "Worker.get_model", ("self",)),
    ("vllm.v1.worker.gpu_worker", "Worker.get_draft_model", ("self",)),
)

# Used only in a process with ``LLM``.
_BEAMS = ("vllm.entrypoints.generate.beam_search.offline", "BeamSearchOfflineMixin")
OFFLINE_NAMES: Names = (
    (_BEAMS[0], f"{_BEAMS[1]}.beam_search", ("prompts", "params")),
    (_BEAMS[0], f"{_BEAMS[1]}._beam_search_step", ("instances_batch", "base_sampling_params")),
    (_BEAMS[0], f"{_BEAMS[1]}._build_beam_sampling_params", ("base_params",)),
)

# Used only where NIXL takes keys to another engine.
_NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
NIXL_NAMES: Names = (
    (_NIXL, "NixlConnector.register_kv_caches", ("kv_caches",)),
    (f"{_NIXL}.metadata", "NixlHandshakePayload", ("compatibility_hash",)),
)

# Attributes that objects of vLLM get in ``__init__``; we look for them in its source.
ENGINE_ATTRIBUTES: Names = (
    (
        "vllm.v1.request",
        "Request",
        (
            *("cache_salt", "block_hashes", "_block_hasher", "resumable", "max_tokens", "num_prompt_tokens"),
            *("sampling_params", "num_output_placeholders", "num_in_flight_tokens"),
        ),
    ),
    (
        "vllm.model_executor.layers.rotary_embedding.base",
        "RotaryEmbeddingBase",
        ("head_size", "rotary_dim", "base", "is_neox_style"),
    ),
    ("vllm.model_executor.layers.linear", "LinearBase", ("input_size", "output_size")),
    (
        "vllm.model_executor.layers.linear",
        "ColumnParallelLinear",
        ("input_size_per_partition", "output_size_per_partition"),
    ),
    (
        "vllm.model_executor.layers.linear",
        "RowParallelLinear",
        ("input_size_per_partition", "output_size_per_partition"),
    ),
    (
        "vllm.v1.core.sched.scheduler",
        "Scheduler",
        (
            *("running", "requests", "policy", "kv_cache_manager", "prev_step_scheduled_req_ids"),
            *("use_v2_model_runner", "max_num_scheduled_tokens", "finished_recving_kv_req_ids", "_pause_state"),
            *("deferred_frees", "waiting", "kv_holding_waiting", "deferred_waiting", "_inflight_prefills"),
            *("num_spec_tokens", "num_lookahead_tokens", "dynamic_sd_lookup", "max_num_running_reqs"),
        ),
    ),
    (
        "vllm.v1.core.kv_cache_manager",
        "KVCacheManager",
        ("coordinator", "block_pool", "watermark_blocks", "max_model_len"),
    ),
    ("vllm.v1.core.kv_cache_coordinator", "KVCacheCoordinator", ("single_type_managers",)),
    (
        "vllm.v1.core.single_type_kv_cache_manager",
        "SingleTypeKVCacheManager",
        (
            *("req_to_blocks", "block_size", "num_cached_block", "kv_cache_spec"),
            "max_admission_blocks_per_request",
        ),
    ),
    ("vllm.v1.core.block_pool", "BlockPool", ("blocks",)),
)
CORE_ATTRIBUTES: Names = (("vllm.v1.engine.core", "EngineCore", ("scheduler", "request_block_hasher")),)
NIXL_ATTRIBUTES: Names = (
    (f"{_NIXL}.connector", "NixlPullConnector", ("connector_worker",)),
    (f"{_NIXL}.base_worker", "NixlBaseConnectorWorker", ("compat_hash", "xfer_handshake_metadata")),
)
CPU_RUNNER_ATTRIBUTES: Names = (
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", ("discard_request_mask", "input_batch")),
    ("vllm.v1.worker.gpu_input_batch", "InputBatch", ("generators",)),
)
SERVER_ATTRIBUTES: Names = (
    ("vllm.v1.engine.async_llm", "AsyncLLM", ("output_processor", "engine_core")),
    ("vllm.v1.engine.core_client", "MPClient", ("engine_ranks_managed", "core_engines")),
    ("vllm.v1.engine.output_processor", "OutputProcessor", ("request_states",)),
    ("vllm.v1.engine.output_processor", "RequestState", ("parent_req", "request_index")),
    (
        "vllm.multimodal.media.connector",
        "MediaConnector",
        ("allowed_media_domains", "allowed_local_media_path"),
    ),
    ("vllm.entrypoints.openai.chat_completion.serving", "OpenAIServingChat", ("default_sampling_params",)),
    ("vllm.entrypoints.openai.completion.serving", "OpenAIServingCompletion", ("default_sampling_params",)),
    ("vllm.entrypoints.openai.responses.serving", "OpenAIServingResponses", ("default_sampling_params",)),
)
