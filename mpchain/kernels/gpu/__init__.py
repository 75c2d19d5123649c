"""Kernels for CuPy arrays, from libraries (cuDNN, cuBLAS) and our own in CUDA C."""
