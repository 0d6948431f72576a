"""Rotation into a paged cache, and re-rotation of cached keys."""
