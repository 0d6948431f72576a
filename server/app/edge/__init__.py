"""Between clients and vLLM's routes: who may ask for what, and how much. ASGI middleware, before a body is parsed."""
