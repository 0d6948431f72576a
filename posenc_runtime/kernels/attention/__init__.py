"""Attention over a paged cache, with a distance bias or contextual positions."""
