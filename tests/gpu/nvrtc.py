"""Calls NVRTC, which compiles CUDA C for any GPU, by ctypes, without a GPU and without a driver.

The wheels nvidia-cuda-nvrtc and nvidia-cuda-runtime contain the compiler and its headers; CuPy's
wheel contains CuPy's headers.
"""

import ctypes
import functools
import importlib.metadata
import pathlib

REASON = "needs NVRTC and CuPy's headers: pip install 'mpchain[gpu-test]'"


def _folder(wheel, path):
    return pathlib.Path(str(importlib.metadata.distribution(wheel).locate_file(path)))


@functools.cache
def load():
    """Returns NVRTC and the folders of headers; None if something is missing."""
    try:
        cuda = _folder("nvidia-cuda-nvrtc", "nvidia/cu13")
        cupy = _folder("cupy-cuda13x", "cupy/_core/include")
        headers = [cuda / "include", cuda / "include" / "cccl", cupy]
        if not all(folder.is_dir() for folder in headers):
            return None
        (builtins,) = cuda.glob("lib/libnvrtc-builtins.so.*")
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(cuda / "lib" / "libnvrtc.so.13")), headers
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return None


def compile_text(text, architecture, options=()):
    """Returns the compiler's log for a text, and the number of bytes of its result."""
    log, binary = compiled(text, architecture, options)
    return log, len(binary)


def compiled(text, architecture, options=()):
    """Returns the compiler's log for a text, and its result, which is empty if compilation
    failed."""
    library, headers = load()
    program = ctypes.c_void_p()
    if library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"text.cu", 0, None, None):
        raise RuntimeError("NVRTC creates no program")
    words = [f"--gpu-architecture={architecture}", *(f"-I{folder}" for folder in headers)]
    # CuPy also puts -ftz=true after the options of its callers.
    words += ["-std=c++17", "-default-device", "-DCUPY_USE_JITIFY=0", *options, "-ftz=true"]
    encoded = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
    failed = library.nvrtcCompileProgram(program, len(words), encoded)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    size = ctypes.c_size_t(0)
    if not failed:
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    if not failed:
        library.nvrtcGetCUBIN(program, binary)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode().strip(), binary.raw
