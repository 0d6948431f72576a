"""The rotary embeddings that take the place of vLLM's, and who registers them."""
