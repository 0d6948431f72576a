"""From settings to a running server: refusals first, then the engine."""
