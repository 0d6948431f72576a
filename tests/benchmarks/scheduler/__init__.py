"""What a step, a crossing and an admission cost the engine's loop: vLLM's scheduler and ours, without a model."""
