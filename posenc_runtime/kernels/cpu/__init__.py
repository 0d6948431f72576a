"""Attention on the CPU, in C++. Torch's extension mechanism compiles the kernels when they are first needed."""
