"""Compares a release of vLLM with our code: a command for whoever adds a release, and its tests. Nothing else asks."""
