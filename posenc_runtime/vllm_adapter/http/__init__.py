"""What vLLM's API server gets from us: routes, what requests may ask, and what answers say."""
