"""Our code in vLLM's API server: routes, checks of requests, and the scale in answers."""
