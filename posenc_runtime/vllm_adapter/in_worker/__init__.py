"""Our code in workers: rotary embeddings, attention, models, and the worker's half of the connector."""
