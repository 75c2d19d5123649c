"""Kernels for NumPy arrays: kernels from libraries (oneDNN, BLAS), and our own (compiled loops,
NumPy)."""
