"""Attention on the CPU, in C++ that torch's extension mechanism compiles when it is first needed."""
