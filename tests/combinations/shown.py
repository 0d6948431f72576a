"""Tests that show features, as ``folder/file.py::name`` below ``tests``."""

from __future__ import annotations

CROSSING = "engine/test_crossing.py::test_requests_that_cross_answer_as_an_unrotated_cache_would"
TWO_WORKERS = "engine/test_crossing.py::test_two_workers_answer_as_an_unrotated_cache_would"
FOUR_WORKERS = "engine/test_parallel.py::test_two_stages_of_two_workers_answer_as_an_unrotated_cache_would"
TWO_ENGINES = "engine/test_parallel.py::test_requests_cross_on_two_engines_behind_one_server"
PREEMPTED = "engine/test_crossing.py::test_preempted_requests_replay_their_crossings"
FOUND_AGAIN = (
    "engine/test_prefix_cache.py::test_a_cached_prompt_is_found_again_at_its_scale_and_computed_anew_at_another"
)
REUSED = "engine/test_prefix_reuse.py::test_a_prefix_of_another_scale_is_read_as_an_unrotated_cache_would_be"
CONTINUED = "engine/test_prefix_reuse.py::test_a_turn_goes_on_from_what_earlier_turns_have_cached"
AHEAD = "vllm_adapter/in_scheduler/test_scheduler_ahead.py::test_every_request_says_what_it_would_say_alone"
AHEAD_AS_ON_A_GPU = (
    "engine/test_as_on_a_gpu.py::test_scheduled_ahead_each_request_answers_as_transformers_at_its_own_scale"
)
GRAPHS = "gpu/test_engine.py::test_requests_that_cross_answer_as_an_unrotated_cache_would"
FLOAT8 = "engine/test_float8_crossings.py::test_turned_float8_keys_answer_about_as_well_as_recomputed_ones"
FLOAT8_AS_ON_A_GPU = "engine/test_as_on_a_gpu.py::test_requests_cross_in_a_float8_cache_nearly_as_in_an_unrotated_one"
NOT_TURNED = (
    "vllm_adapter/refusals/test_support.py::test_what_keys_cannot_be_turned_in_is_served_by_computing_them_again"
)
WINDOWS = "engine/test_families_windows.py::test_requests_that_cross_answer_as_transformers_does_with_keys_turned"
RECURRENT = "engine/test_families_recurrent.py::test_requests_that_cross_answer_as_if_plain_torch_had_turned_their_keys"
DRAFTS = "engine/test_drafts.py::test_drafts_change_no_answer_over_crossings"
DRAFTS_RECOMPUTED = "engine/test_drafts.py::test_drafts_change_no_answer_of_requests_that_are_recomputed"
DRAFTS_PINNED = "engine/test_drafts.py::test_drafts_at_the_end_of_a_pinned_request_change_no_answer"
DRAFTS_OF_MTP = "engine/test_drafts.py::test_drafts_of_a_models_own_layer_change_no_answer"
DRAFTS_AHEAD = "vllm_adapter/in_scheduler/test_drafts.py::test_every_request_says_what_it_would_say_without_drafts"
LMCACHE = "engine/test_offloading.py::test_an_engine_reads_what_another_has_stored_in_lmcache_at_the_same_scale"
OFFLOADED = "engine/test_offloading.py::test_offloaded_blocks_are_loaded_at_the_scale_that_they_were_stored_at"
NOBODY_CROSSES = (
    "vllm_adapter/refusals/test_support.py::test_what_crossings_do_not_allow_is_served_where_nobody_crosses"
)
NO_PREFIXES = "vllm_adapter/refusals/test_support.py::test_prefixes_are_not_reused_where_none_are_kept"
KV_EVENTS = "vllm_adapter/in_scheduler/test_kv_events.py::test_every_name_has_one_content_and_every_parent_was_stored"
BEAMS = "engine/test_one_scale.py::test_beams_over_a_boundary_equal_those_of_its_larger_scale"
BEAMS_OF_LLM = "engine/test_one_scale.py::test_beams_of_several_prompts_run_at_a_scale_for_each"
ITEMS = "engine/test_one_scale.py::test_items_are_scored_at_the_scale_of_the_longest"
SEVERAL_ANSWERS = "engine/test_one_scale.py::test_each_of_several_answers_says_its_own_crossings"
ADAPTED = "engine/test_adapters.py::test_requests_cross_with_an_adapter"
TURNED_ADAPTED = "engine/test_adapters.py::test_queries_turn_with_an_adapter"
ADAPTERS = "vllm_adapter/in_scheduler/test_scheduler.py::test_a_request_that_is_crossing_keeps_its_adapters_place"
RAY = "engine/test_read_time_beside.py::test_an_engine_in_an_actor_of_ray_answers_as_any_other"

TURNED = "engine/test_read_time.py::test_a_mixed_batch_answers_as_the_oracle_at_each_methods_distances"
TURNED_FAMILY = "engine/test_read_time.py::test_a_family_answers_as_the_oracle"
TURNED_TWO_WORKERS = "engine/test_read_time_beside.py::test_two_workers_answer_as_the_oracle"
TURNED_TWO_ENGINES = "engine/test_read_time_beside.py::test_two_engines_behind_one_server_answer_as_the_oracle"
TURNED_PREEMPTED = "engine/test_read_time_beside.py::test_preempted_requests_of_several_priorities_answer_as_the_oracle"
TURNED_FLOAT8 = "engine/test_read_time_beside.py::test_fewer_bits_answer_about_as_the_oracle"
TURNED_DRAFTS = "engine/test_read_time_beside.py::test_drafted_tokens_change_no_answer"
TURNED_DRAFTS_OF_MTP = "engine/test_read_time_beside.py::test_a_model_with_a_layer_that_drafts_answers_as_the_oracle"
TURNED_DRAFTS_ON_AXES = "engine/test_read_time.py::test_drafts_for_a_model_whose_positions_have_axes_change_no_answer"
TURNED_SEVERAL = (
    "engine/test_read_time_beside.py::test_several_answers_and_beams_are_the_oracles_and_other_parts_are_stocks"
)
TURNED_SCORES = "engine/test_read_time_beside.py::test_plain_vllm_with_one_flag_answers_and_scores_as_the_oracle"
TURNED_OFFLOADED = "engine/test_read_time_beside.py::test_blocks_that_were_offloaded_to_memory_are_read_again"
TURNED_AS_ON_A_GPU = "engine/test_as_on_a_gpu.py::test_queries_past_the_trained_length_turn_beside_short_requests"
TURNED_GRAPHS = "gpu/test_read_time.py::test_short_and_long_requests_together_answer_as_the_oracle"
TURNED_LMCACHE = (
    "engine/test_read_time_lmcache.py::test_an_engine_reads_what_one_with_the_same_distances_has_stored_and_no_other"
)
OWN_SCALES_AS_ON_A_GPU = (
    "engine/test_as_on_a_gpu.py::test_requests_cross_in_a_cache_whose_keys_have_scales_of_their_own"
)
OWN_SCALES = "kernels/test_own_scales.py::test_keys_drift_with_every_crossing_no_further_than_rounding_takes_them"
NIXL = "engine/test_nixl.py::test_a_server_goes_on_at_the_scale_at_which_another_has_prefilled"
NIXL_WINDOWS = "engine/test_nixl.py::test_layers_with_windows_go_on_as_in_one_server"
NIXL_REFUSES = "engine/test_nixl.py::test_what_no_server_has_signed_is_refused_and_reaches_no_cache"
TURNED_NIXL = "engine/test_read_time_nixl.py::test_a_server_decodes_over_the_keys_of_another"
TURNED_NIXL_REFUSES = "engine/test_read_time_nixl.py::test_a_server_with_another_window_refuses_the_handshake"
