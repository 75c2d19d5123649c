"""Kernels for CuPy arrays: of libraries (cuDNN, cuBLAS) and our own in CUDA C."""
