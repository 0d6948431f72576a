"""Triton kernels, C++ kernels in ``cpu``, and the torch reference of each. No kernel depends on a method's name."""
