"""The rotary embeddings that replace vLLM's, and their registration."""
