"""Kernels for NumPy arrays, from libraries (oneDNN, BLAS) and our own (compiled loops, NumPy)."""
