"""Kernels on an NVIDIA GPU: as a share of its copy bandwidth, and in turns with what vLLM runs there."""
