"""Kernels for NumPy arrays: of libraries (oneDNN, BLAS) and our own (compiled loops, NumPy)."""
