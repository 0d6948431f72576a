"""What a model's code in vLLM does with its rotary embeddings, which no configuration says."""
