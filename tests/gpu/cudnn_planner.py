"""Plans cuDNN's graphs for absent GPUs: python -m tests.gpu.cudnn_planner < REQUESTS.

The program reads lines of JSON, and writes a line for each. The wheels nvidia-cudnn-frontend and
nvidia-cudnn-cu13 plan, and compile some kernels by NVRTC, from a description of a GPU, which cuDNN
calls device properties. doubles/cudnn_double/driver.c answers their calls of the CUDA runtime and
the driver.
"""

import ctypes
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from mpchain.configuration import using_config
from mpchain.kernels.gpu import cudnn as kernels
from mpchain.kernels.gpu import cudnn_attention, cudnn_normalization
from mpchain.kernels.window import Window
from mpchain.utils.conv import get_conv_outsize

DRIVER = pathlib.Path(__file__).parent / "doubles" / "cudnn_double" / "driver.c"
LIBRARIES = "libcudart.so.13", "libcuda.so.1"
WHEELS = "nvidia-cudnn-frontend", "nvidia-cudnn-cu13"
_HOPPER = {
    "deviceVer": 900,
    "driverVer": 13000,
    "multiProcessorCount": 132,
    "smClockRateKHz": 1980000,
    "memClockRateKHz": 2619000,
    "memoryBusWidth": 5120,
    "l2CacheSize": 50 << 20,
    "warpSize": 32,
    "regsPerBlock": 65536,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024,
    "oversizedSharedMemoryPerBlock": 0,
    "maxRegistersPerSM": 65536,
    "pciDeviceId": 0,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "totalGlobalMem": 85017624576,
    "cudaDeviceId": 0,
    "deviceName": "NVIDIA H100 80GB HBM3",
}
GPUS = {
    "H100": _HOPPER,
    "B200": {**_HOPPER, "deviceVer": 1000, "multiProcessorCount": 148, "deviceName": "NVIDIA B200"},
}


def why_absent():
    """Returns what planning lacks; None if it is possible."""
    if shutil.which("gcc") is None:
        return "needs gcc"
    if importlib.util.find_spec("cudnn") is None or importlib.util.find_spec("nvidia") is None:
        return f"needs {' and '.join(WHEELS)}: pip install 'mpchain[gpu-test]'"
    return None


# The plans, {name: arguments}, from which both this program and the tests make requests.


def convolution(n, c, o, size, k, s=1, p=0, d=1, groups=1):
    """Returns the arguments of a convolution of images, or of volumes if size has three axes."""
    size = (size, size) if isinstance(size, int) else tuple(size)
    out = tuple(get_conv_outsize(i, k, s, p, False, d) for i in size)
    window = [*((v,) * len(size) for v in (k, s, p, d)), groups, size, out]
    shapes = {"x": (n, c, *size), "W": (o, c // groups, *[k] * len(size)), "y": (n, o, *out)}
    return {"window": window, **shapes}


SMALL = {
    "plain": convolution(2, 8, 16, 14, 3, p=1),
    "strided": convolution(2, 16, 8, 15, 3, 2, 1),
    "grouped and dilated": convolution(2, 16, 16, 14, 3, p=2, d=2, groups=4),
    "volumes": convolution(2, 8, 8, (6, 7, 6), 3, p=1),
}


def _resnet50(n=32):
    yield "stem", convolution(n, 3, 64, 224, 7, 2, 3)
    c, size = 64, 56
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        yield f"{width} in", convolution(n, c, width, size, 1)
        yield f"{width} windows", convolution(n, width, width, size, 3, stride, 1)
        yield f"{width} beside", convolution(n, c, 4 * width, size, 1, stride)
        size //= stride
        yield f"{width} out", convolution(n, width, 4 * width, size, 1)
        yield f"{width} in again", convolution(n, 4 * width, width, size, 1)
        c = 4 * width


def _dcgan(n=64):
    for c, o, size in ((3, 64, 64), (64, 128, 32), (128, 256, 16), (256, 512, 8)):
        yield f"{size}", convolution(n, c, o, size, 4, 2, 1)
    yield "code", convolution(n, 512, 100, 4, 4)


MODELS = {f"ResNet-50 {name}": case for name, case in _resnet50()}
MODELS |= {f"DCGAN {name}": case for name, case in _dcgan()}
IMAGES = [(4, 8, 6, 6), (32, 64, 112, 112), (32, 256, 56, 56), (32, 2048, 7, 7), (64, 512, 4, 4)]
ROWS = [(16, 64), (8 * 1024, 768)]
NORMALIZATIONS = {"batch": IMAGES, "batch_gradient": IMAGES}
NORMALIZATIONS |= dict.fromkeys(("layer", "layer_gradient", "rms", "rms_gradient"), ROWS)
LINEAR = [
    (16, 8, 24, True),
    (16, 8, 24, False),
    (1024, 768, 2304, True),
    (1024, 768, 768, True),
    (1024, 768, 3072, True),
    (1024, 3072, 768, True),
]
HEADS = (2, 12, 1024, 64)
ATTENTION = {
    "small": ((2, 3, 16, 16),) * 3,
    "other lengths": ((2, 3, 24, 32), (2, 3, 40, 32), (2, 3, 40, 16)),
    "GPT-2": (HEADS,) * 3,
}
OPERANDS = {"output": "xW", "output + bias": "xW", "input": "yW", "filter": "xy"}


def make_request(operation, dtype, case):
    """Returns mpchain's request for a case."""
    if operation in OPERANDS:
        first, second = (tuple(case[name]) for name in OPERANDS[operation])
        window = Window(*(tuple(x) if isinstance(x, (tuple, list)) else x for x in case["window"]))
        open_slot, _, has_bias = operation.partition(" + ")
        geometry = window, False, bool(has_bias)
        return kernels.convolution_request(open_slot, first, second, dtype, *geometry)
    if operation == "linear":
        n, n_in, n_out, has_bias = case
        return kernels.linear_request(n, n_in, n_out, dtype, has_bias)
    of_gradient = operation.endswith("gradient")
    if operation.startswith("attention"):
        shapes, options = case
        q, k, v = (((b, h, n, e), (n * h * e, e, h * e, 1)) for b, h, n, e in shapes)
        y = (*q[0][:3], v[0][3]), (q[0][2] * q[0][1] * v[0][3], v[0][3], q[0][1] * v[0][3], 1)
        arrays = (y, q, k, v, y) if of_gradient else (q, k, v)
        options = cudnn_attention.Options(0.125, **options)
        if options.bias is not None:
            bias = tuple(options.bias)
            options = options._replace(bias=(bias, kernels.packed(bias)))
        if options.dropout is not None:
            options = options._replace(dropout=tuple(options.dropout))
        return cudnn_attention.attention_request(of_gradient, arrays, dtype, options)
    if operation.startswith("batch"):
        return cudnn_normalization.batch_request(of_gradient, tuple(case), dtype)
    is_centered = operation.startswith("layer")
    return cudnn_normalization.layer_request(of_gradient, *case, dtype, is_centered)


# The program.


def _load_driver():
    """Compiles the answers, and loads them instead of the CUDA runtime and the driver."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"cudnn_double_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    loaded = []
    for name in LIBRARIES:
        file = folder / f"{hashlib.sha256(DRIVER.read_bytes()).hexdigest()[:16]}_{name}"
        if not file.exists():
            made = file.with_name(f"{os.getpid()}_{name}")
            command = ["gcc", "-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
            subprocess.run([*command, "-o", made, DRIVER], check=True, timeout=60)
            made.replace(file)
        loaded.append(ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL))
    return loaded


def _plan(cudnn, drivers, gpu, operation, dtype, case, tensor_cores="auto"):
    properties = GPUS[gpu]
    for driver in drivers:
        ctypes.c_int.in_dll(driver, "capability").value = properties["deviceVer"] // 10
        number = ctypes.c_int.in_dll(driver, "multiprocessors")
        number.value = properties["multiProcessorCount"]
    request = make_request(operation, dtype, case)
    device = cudnn.create_device_properties(json.dumps(properties))
    graph = kernels.make_graph(cudnn, request, device_property=device)
    described = json.loads(str(graph))
    limit = (8 << 20) + request.n_extra
    with using_config("use_cudnn_tensor_core", tensor_cores):
        kernels.make_plan(cudnn, graph, kernels.avoided_notes(dtype), limit)
    lowered = json.loads(str(graph))
    tensors = lowered["tensors"]
    tensors = [*tensors.values()] if isinstance(tensors, dict) else tensors
    return {
        "graph": described,
        "lowered": lowered["nodes"],
        "by_value": [x["uid"] for x in tensors if x.get("is_pass_by_value")],
        "workspace": graph.get_workspace_size(),
        "limit": limit,
    }


def main():
    drivers = _load_driver()
    import cudnn

    for line in sys.stdin:
        try:
            planned = _plan(cudnn, drivers, *json.loads(line))
        except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
            planned = {"refused": str(error).strip().splitlines()[0]}
        print(json.dumps(planned), flush=True)


if __name__ == "__main__":
    main()
