"""Kernels on an NVIDIA H200: as a share of its copy bandwidth, and in turns with what vLLM runs there."""
