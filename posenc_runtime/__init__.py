"""Position encodings that know about the KV cache: mathematics, kernels, decisions, and the vLLM adapter."""
