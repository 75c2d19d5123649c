"""Kernels for CuPy arrays: kernels from libraries (cuDNN, cuBLAS), and our own in CUDA C."""
