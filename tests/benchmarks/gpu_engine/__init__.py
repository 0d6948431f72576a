"""The engine on an H200: what a crossing costs, what a reused prefix saves, and throughput against stock vLLM."""
