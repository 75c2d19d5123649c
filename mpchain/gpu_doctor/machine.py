"""Collects facts about a GPU machine, and tests kernel launches, copies, cuDNN's plans and NCCL."""

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mpchain import annexes
from mpchain.backends import cuda
from mpchain.backends.nccl_bindings import (
    BINDINGS,
    SUM,
    TYPES,
    Connection,
    find_binding,
    new_identity,
)
from mpchain.gpu_doctor.check import contract, is_double
from mpchain.kernels.window import Window
from mpchain.utils.runtime_info import print_runtime_info

Item = tuple[str, Callable[[], dict[str, Any]]]
"""The name of a result, and a function that finds the result."""

_ASKER = "the GPU doctor"
_COMMANDS = (
    "nvidia-smi",
    "nvidia-smi -q -d CLOCK,POWER,ECC,MEMORY",
    "nvidia-smi topo -m",
    f"{sys.executable} -m pip freeze",
)
_PREFIXES = "CUDA", "NCCL", "CUPY", "CUDNN", "NVIDIA", "MPCHAIN"


def machine() -> Iterator[Item]:
    """Yields items with facts about the host: GPUs, packages, environment variables, versions, and
    how CuPy's names and parameters differ from those of the tested version.

    Example:
        >>> [name for name, _ in machine()][-1]
        "CuPy's names"
    """
    yield "versions", _versions
    yield "variables", _variables
    for command in _COMMANDS:
        yield command.replace(sys.executable, "python"), lambda command=command: _output(command)
    yield "CuPy's names", lambda: {"contract": contract()}


def _versions():
    versions = io.StringIO()
    print_runtime_info(versions)
    found = {"versions": versions.getvalue().splitlines(), "GPUs": cuda.device_count()}
    found["is a double"] = is_double()
    if not cuda.available:
        return found | {"ok": False, "error": f"no GPU that works: {cuda.unavailable_reason()}"}
    return found


def _variables():
    return {"variables": {k: v for k, v in os.environ.items() if k.startswith(_PREFIXES)}}


def _output(command):
    try:
        done = subprocess.run(
            command.split(), capture_output=True, text=True, timeout=40, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"reason": str(error)}
    return {"output": done.stdout[-20_000:], "exit code": done.returncode}


def command(*words: str) -> Iterator[Item]:
    """Yields an item that finds the last line of a command's output, and whether it succeeds.

    Example:
        >>> ((name, find),) = command("echo", "hello")
        >>> find()["found"]
        'hello'
    """
    yield words[0], lambda: _judged(words)


def _judged(words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return {"reason": str(error)}
    said = f"{done.stdout}\n{done.stderr}".strip()
    last = (done.stdout.strip() or said).rpartition("\n")[2]
    if done.returncode:
        return {"ok": False, "error": f"{said[-6000:]}\nexit code {done.returncode}: {last}"}
    return {"ok": True, "found": last}


def seconds_of(call: Callable[[], Any], n: int = 10) -> float:
    """Returns the time of a call in seconds, by the GPU's clock; on the test double, by the host's.

    Args:
        call: the function to time; three untimed calls warm up (on the test double, one).
        n: the number of timed calls; on the test double, one call is timed.

    Example:
        >>> seconds_of(lambda: cupy.add(x, x))  # doctest: +SKIP
        2.1e-06
    """
    n_before, n = (1, 1) if is_double() else (3, n)
    for _ in range(n_before):
        call()
    if is_double():
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    begin, end = cuda.Event(), cuda.Event()
    begin.record()
    for _ in range(n):
        call()
    end.record()
    end.synchronize()
    return cuda.cupy.cuda.get_elapsed_time(begin, end) / 1e3 / n


def basics() -> Iterator[Item]:
    """Yields items that test kernel launches and copies, on which all other results depend.

    Example:
        >>> [name for name, _ in basics()][0]
        'bytes of arguments of a kernel'
    """
    yield "bytes of arguments of a kernel", _argument_bytes
    yield "subnormal numbers", _subnormal
    one = lambda: cuda.cupy.ones(1, np.float32)
    yield (
        "host time of a launch, ufunc",
        lambda: _host_time(lambda x: cuda.cupy.add(x, x, x), one()),
    )
    yield "host time of a launch, own kernel", lambda: _host_time(_twice(), one())
    n = 1 << (16 if cuda.available and is_double() else 28)
    yield "copy on the GPU", lambda: _copy(cuda.cupy.ones(n, np.float32), lambda x: x.copy(), 2)
    yield "copy from the host", lambda: _copy(np.ones(n // 4, np.float32), cuda.cupy.asarray, 1)
    yield "copy to the host", lambda: _copy(cuda.cupy.ones(n // 4, np.float32), cuda.to_cpu, 1)


_BIG = """struct Table { double v[4000]; };
extern "C" __global__ void big(const Table table, double* y) {
  y[threadIdx.x] = table.v[3999 - threadIdx.x];
}"""


def _argument_bytes():
    """Checks that a kernel gets a table of 32 kB as an argument, as optimizers need; before CUDA
    12.1, the limit is 4 kB."""
    steps = annexes.load("gpu_kernels", "kernels.gpu.cuda_steps", _ASKER)
    n_bytes = steps._argument_bytes()
    if n_bytes < 32_008:
        return {"found": f"{n_bytes}"}
    table = np.zeros(1, [("v", np.float64, 4000)])
    table["v"][0] = np.arange(4000)
    y = cuda.cupy.zeros(32)
    cuda.raw(_BIG, "big")((1,), (32,), (table, y))
    if not bool((y.get() == 3999 - np.arange(32)).all()):
        return {"ok": False, "error": "a kernel reads wrong values in a table of 32,000 bytes"}
    return {"ok": True, "found": f"{n_bytes}"}


def _twice():
    return cuda.elementwise("T x", "T y", "y = x * (T)2", "mpchain_doctor_twice")


def _subnormal():
    """Finds whether kernels treat subnormal numbers as zero; CuPy compiles with -ftz=true."""
    y = _twice()(cuda.cupy.full(4, 1e-40, np.float32))
    return {"found": "survive" if float(y[0]) else "are zero, as mpchain's documents say"}


def _host_time(call, x):
    n = 20 if is_double() else 2000
    call(x)
    cuda.cupy.cuda.Device().synchronize()
    begin = time.perf_counter()
    for _ in range(n):
        call(x)
    host = time.perf_counter() - begin
    cuda.cupy.cuda.Device().synchronize()
    return {"microseconds": 1e6 * host / n, "found": f"{1e6 * host / n:.3g} µs"}


def _copy(x, copy, n_moved):
    return bandwidth(lambda: copy(x), n_moved * x.nbytes)


def bandwidth(call: Callable[[], Any], n_bytes: int) -> dict[str, Any]:
    """Returns the time and the bandwidth of a call that reads and writes ``n_bytes`` bytes.

    Example:
        >>> bandwidth(lambda: x.copy(), 2 * x.nbytes)  # doctest: +SKIP
        {'milliseconds': 0.7, 'gb_per_s': 2950.0, 'found': '0.7 ms, 2950 GB/s'}
    """
    seconds = max(seconds_of(call), 1e-9)
    milliseconds, rate = 1e3 * seconds, n_bytes / seconds / 1e9
    found = f"{milliseconds:.3g} ms, {rate:.4g} GB/s"
    return {"milliseconds": milliseconds, "gb_per_s": rate, "found": found}


def plans() -> Iterator[Item]:
    """Yields items that find cuDNN's plans for convolutions of ResNet-50 and attention of GPT-2.

    Example:
        >>> [name for name, _ in plans()][0]
        'plan: convolution, output, float16'
    """
    cudnn = annexes.load("gpu_kernels", "kernels.gpu.cudnn", _ASKER)
    attention = annexes.load("gpu_kernels", "kernels.gpu.cudnn_attention", _ASKER)
    window = Window((3, 3), (1, 1), (1, 1), (1, 1), 1, (56, 56), (56, 56))
    images, filters = (64, 64, 56, 56), (64, 64, 3, 3)
    of_slot = {"output": (images, filters), "input": (images, filters)}
    of_slot["filter"] = images, images
    for slot, pair in of_slot.items():
        for dtype in ("float16", "float32"):
            for is_last in (False, True):
                request = cudnn.convolution_request(slot, *pair, dtype, window, is_last)
                name = f"plan: convolution, {slot}, {dtype}{', channels last' * is_last}"
                yield name, lambda request=request: _plan(cudnn, request)
    like = (8, 12, 1024, 64), (12 * 1024 * 64, 64, 768, 1)
    for what, n in (("attention", 3), ("gradient of attention", 5)):
        request = attention.attention_request(
            n == 5, (like,) * n, "float16", attention.Options(0.125, True)
        )
        yield f"plan: {what}, float16", lambda request=request: _plan(cudnn, request)


def _plan(cudnn, request):
    if reason := cudnn.why_absent():
        return {"reason": reason}
    begin = time.perf_counter()
    plan = cudnn.plan_of(request, cuda.cupy.cuda.Device())
    seconds = time.perf_counter() - begin
    if isinstance(plan, str):
        return {"reason": plan, "seconds": seconds}
    row = {"plan": plan.name, "workspace": plan.n_bytes, "seconds": seconds}
    return row | {"found": f"{plan.name}, {plan.n_bytes} bytes, planned in {seconds:.2g} s"}


def nccl() -> Iterator[Item]:
    """Yields an item for each binding of NCCL, which tests sums on one rank, eager and captured.

    Example:
        >>> [name for name, _ in nccl()]
        ['NCCL by nccl4py', 'NCCL by cupy', 'NCCL by pynccl']
    """
    for binding in BINDINGS:
        yield f"NCCL by {binding}", lambda binding=binding: _nccl(binding)


def _nccl(binding):
    cupy = cuda.cupy
    try:
        find_binding(binding)
    except RuntimeError as error:
        return {"reason": str(error)}
    own = Connection(1, new_identity(binding), 0, binding)
    x, y, z = cupy.arange(8, dtype="f"), cupy.zeros(8, "f"), cupy.zeros(8, "f")
    stream = cupy.cuda.Stream(non_blocking=True)
    count = x.size, TYPES["float32"]
    own.run("all_reduce", x.data.ptr, y.data.ptr, *count, SUM, stream=0)
    wrong = [] if bool((y == x).all()) else ["a sum"]
    if own.has_products:
        with own.product(0.5, x.dtype) as half:
            own.run("all_reduce", x.data.ptr, y.data.ptr, *count, half, stream=0)
        wrong += [] if bool((2 * y == x).all()) else ["a sum of products"]
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        own.run("all_reduce", x.data.ptr, z.data.ptr, *count, SUM, stream=stream.ptr)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    wrong += [] if bool((z == x).all()) else ["a sum in a graph"]
    del graph
    own.destroy()
    row = {"has products": own.has_products, "can shrink": own.can_shrink}
    if wrong:
        return row | {"ok": False, "error": f"wrong: {', '.join(wrong)}"}
    return row | {"ok": True, "found": "sums, also in a graph"}
