"""Triton kernels, in ``cpu`` those in C++, and the torch reference of each. They know no method by name."""
