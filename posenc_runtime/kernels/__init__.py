"""Triton kernels, and beside each the torch reference of the same signature. Tables in, tensors out: no method by name."""
