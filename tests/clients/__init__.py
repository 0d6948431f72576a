"""Clients of others, unchanged, against our server: ``python -m tests.clients``."""
