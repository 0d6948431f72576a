"""Triton kernels, and beside each the torch reference of the same signature. They know no method by name."""
