"""The engine on a GPU: what a crossing costs, what a reused prefix saves, and throughput against stock vLLM."""
