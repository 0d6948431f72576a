"""Attention that rotates queries and keys itself (``attention.fused_rotary``)."""
