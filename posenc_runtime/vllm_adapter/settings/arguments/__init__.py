"""Turns a deployment into vLLM's own arguments, and words the errors about arguments."""
