"""Prints the versions of the libraries that mpchain uses, and the configuration."""

import platform
import sys
from typing import TextIO

import numpy as np

from mpchain import annexes
from mpchain.backends import cuda
from mpchain.configuration import config
from mpchain.utils.version import __version__

LAST_RUN_ON_HARDWARE = "never"
"""The date and the GPU of the last run of the GPU code on a real GPU. README.md and the guide to
GPUs repeat this text."""

_STATE_OF_GPU_CODE = "tested only against mock CUDA libraries; last run on a real GPU: "
_MISSING = "not installed"


def print_runtime_info(out: TextIO | None = None) -> None:
    """Prints the versions of Python and of the libraries that compute and communicate, and the
    configuration of this thread.

    Args:
        out: stream to print to; None means standard output.

    Example:
        >>> print_runtime_info()
        Platform: ...
        mpchain: ...
        Python: ...
    """
    for name, value in _runtime_info().items():
        print(f"{name}: {value}", file=out)
    print("Configuration:", file=out)
    config.show(out)


def _runtime_info():
    return {
        "Platform": platform.platform(),
        "mpchain": __version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "  BLAS": _blas(),
        "SciPy": _version("scipy"),
        "numba": _version("numba"),
        "oneDNN": _version("onednn-cpu-gomp"),
        **_cuda(),
        "NCCL": _version("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
        "cuDNN": _version("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
        "  front end": _version("nvidia-cudnn-frontend"),
        **_plans_of_cudnn(),
        "GPU code": _STATE_OF_GPU_CODE + LAST_RUN_ON_HARDWARE,
        "mpi4py": _version("mpi4py"),
        "  MPI": _mpi(),
    }


def _version(*distributions):
    """Returns the version of the first distribution that is installed, without importing it."""
    # The import is inside the function, because importing importlib.metadata takes a tenth of
    # mpchain's import time.
    import importlib.metadata

    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return _MISSING


def _blas():
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{blas['name']} {blas['version']}"


def _cuda():
    if not cuda.available:
        return {"CuPy": cuda.unavailable_reason()}
    cupy = cuda.cupy
    runtime, device = cupy.cuda.runtime, cupy.cuda.Device()
    return {
        "CuPy": cupy.__version__,
        "  CUDA runtime": runtime.runtimeGetVersion(),
        "  CUDA driver": runtime.driverGetVersion(),
        "  GPU": runtime.getDeviceProperties(device.id)["name"].decode(),
    }


def _plans_of_cudnn():
    """Returns a dict whose entry is "planned" if cuDNN can plan a convolution, else the reason; an
    empty dict without a GPU. The call starts cuDNN."""
    cudnn = annexes.find("gpu_kernels", "kernels.gpu.cudnn") if cuda.available else None
    return {} if cudnn is None else {"  convolution": cudnn.why_no_plan() or "planned"}


def _mpi():
    """Returns the version of the MPI library if it is loaded. The function does not load the
    library, because loading would start MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        return "not loaded"
    return mpi.Get_library_version().splitlines()[0].rstrip("\x00")
