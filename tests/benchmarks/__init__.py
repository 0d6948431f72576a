"""Measurements of speed and of answers; none of them is a test."""
