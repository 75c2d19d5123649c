"""Imports every file of this folder that adds kernels to operations."""

from mpchain.kernels.gpu import cublas as cublas
from mpchain.kernels.gpu import cuda_random as cuda_random
from mpchain.kernels.gpu import cuda_reductions as cuda_reductions
from mpchain.kernels.gpu import cuda_rows as cuda_rows
from mpchain.kernels.gpu import cuda_windows as cuda_windows
from mpchain.kernels.gpu import cudnn as cudnn
from mpchain.kernels.gpu import cudnn_attention as cudnn_attention
from mpchain.kernels.gpu import cudnn_normalization as cudnn_normalization
