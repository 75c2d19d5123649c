"""A hook that marks ranges for NVIDIA's profilers."""

from typing import Any

from mpchain.backends import cuda
from mpchain.function_hook import FunctionHook
from mpchain.function_node import FunctionNode
from mpchain.typing import Arrays


class CUDAProfileHook(FunctionHook):
    """Marks each computation of a function as an NVTX range, which NVIDIA's profilers show.

        >>> with CUDAProfileHook():  # doctest: +SKIP
        ...     loss.backward()

    Raises:
        RuntimeError: no GPU can be used, or CuPy was built without NVTX.
    """

    name = "CUDAProfileHook"

    def __init__(self) -> None:
        cuda.check_cuda_available()
        self._nvtx: Any = getattr(cuda.cupy.cuda, "nvtx", None)
        if self._nvtx is None:
            raise RuntimeError(
                "CUDAProfileHook: this CuPy was built without NVTX; install a CuPy that has "
                "cupy.cuda.nvtx"
            )

    def forward_preprocess(self, function: FunctionNode, in_data: Arrays) -> None:
        self._nvtx.RangePush(f"{function.label}.forward")

    def forward_postprocess(self, function: FunctionNode, in_data: Arrays) -> None:
        self._nvtx.RangePop()

    def backward_preprocess(
        self, function: FunctionNode, in_data: Arrays, out_grad: Arrays
    ) -> None:
        self._nvtx.RangePush(f"{function.label}.backward")

    def backward_postprocess(
        self, function: FunctionNode, in_data: Arrays, out_grad: Arrays
    ) -> None:
        self._nvtx.RangePop()
