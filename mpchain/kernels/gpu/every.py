"""Imports every file that adds kernels to operations."""

from mpchain.kernels.gpu import (
    cublas,
    cuda_random,
    cuda_reductions,
    cuda_rows,
    cuda_windows,
    cudnn,
    cudnn_attention,
    cudnn_normalization,
)

LIBRARIES = (
    cublas,
    cuda_random,
    cuda_reductions,
    cuda_rows,
    cuda_windows,
    cudnn,
    cudnn_attention,
    cudnn_normalization,
)
"""The files."""
