"""Requests that nobody should send, and what the server makes of them: ``make fuzz``."""
