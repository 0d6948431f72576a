"""What runs in the server's process: routes, the page, probes, and the middleware before vLLM's routes."""
