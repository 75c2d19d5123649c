"""Implements ``python -m mpchain``, which shows what is installed."""

import argparse
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata

import numpy as np

from mpchain import kernels
from mpchain.backends import cuda
from mpchain.kernels.window import Window
from mpchain.utils.runtime_info import print_runtime_info
from mpchain.utils.version import __version__

BRINGS = {
    "mpi": "several ranks",
    "cpu": "faster convolutions, normalization, optimizers and draws on CPUs; special functions",
    "gpu": "GPUs",
    "bfloat16": "bfloat16 arrays",
    "data": "images, SVHN, and bars for downloads",
    "plot": "plots of training, and progress bars",
    "metrics": "F1, BLEU and the like",
    "tensorboard": "logs for TensorBoard",
    "page": "the live page of a run",
    "io": "HDF5 files",
    "onnx": "ONNX files",
    "caffe": "Caffe's files",
}
"""The features that extras for users add, by extra."""


def kernels_in_use() -> list[str]:
    """Returns lines that say which kernel runs each of four operations on usual arrays, and why the
    kernels before it do not run.

    Example:
        >>> kernels_in_use()[-1]
        'softmax: reference: runs'
    """
    x, W = np.zeros((32, 16, 16, 16), np.float32), np.zeros((16, 16, 3, 3), np.float32)
    window = Window((3, 3), (1, 1), (1, 1), (1, 1), 1, (16, 16), (16, 16))
    ones, numbers = np.ones((1, 16, 1, 1), np.float32), np.arange(32)
    lines = [
        kernels.explain("convolution_output", x, W, window),
        kernels.explain("batch_normalization", x, ones, ones, (0, 2, 3), 1e-5),
        kernels.explain("random_words", numbers, numbers, 1024, 0, 0, 0, 0),
        kernels.explain("softmax", x[:, :, 0, 0], 1),
    ]
    return [line for line in "\n".join(lines).splitlines() if not line.endswith("not needed")]


def missing_packages() -> dict[str, list[str]]:
    """Returns, for each extra in :data:`BRINGS`, its packages that are not installed; an empty dict
    if mpchain itself is not installed.

    Example:
        >>> missing_packages().get("io") in ([], ["h5py"], None)
        True
    """
    try:
        requirements = metadata.requires("mpchain") or []
    except metadata.PackageNotFoundError:
        return {}
    here = {"sys_platform": sys.platform, "platform_machine": platform.machine()}
    missing = {extra: [] for extra in BRINGS}
    for requirement in requirements:
        (package,) = re.findall(r"^[\w.-]+", requirement)
        marker = requirement.partition(";")[2]
        wanted = dict(re.findall(r"(\w+) == ['\"]([\w-]+)['\"]", marker))
        if wanted.pop("extra", None) not in missing or not wanted.items() <= here.items():
            continue
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            (extra,) = re.findall(r"extra == ['\"]([\w-]+)", marker)
            missing[extra].append(package)
    return missing


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints versions and the state of each extra; with ``--verbose``, also the configuration and
    kernels.

    Args:
        arguments: the command line without the program's name; None means the command line of this
            process.

    Example:
        >>> main([])
        mpchain 0.1.0 on Python ...
        Extras:
        ...
        >>> main(["--verbose"])
        Platform: ...
        Kernels for float32 arrays on the CPU:
        convolution_output: ...
        Extras:
        ...
    """
    parser = argparse.ArgumentParser(
        prog="python -m mpchain", description="Shows what is installed."
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="all versions, the configuration, the kernels"
    )
    is_verbose = parser.parse_args(arguments).verbose
    if is_verbose:
        print_runtime_info()
        print("Kernels for float32 arrays on the CPU:", *kernels_in_use(), sep="\n")
    else:
        python, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
        print(f"mpchain {__version__} on Python {python}, NumPy {np.__version__}, {system}")
        print(f"GPU: {'yes' if cuda.available else cuda.unavailable_reason()}")
    print("Extras:")
    missing = missing_packages()
    for extra, packages in missing.items():
        state = "installed"
        if packages:
            state = f"lacks {', '.join(packages)}: pip install 'mpchain[{extra}]' ({BRINGS[extra]})"
        print(f"{extra:12}{state}")
    if not missing:
        print("unknown: mpchain is not installed, only its source is on the path")
    if not is_verbose:
        print("python -m mpchain --verbose adds all versions, the configuration and the kernels")


if __name__ == "__main__":
    main()
