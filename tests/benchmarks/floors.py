"""Measures how much of PyTorch's time of each workload its products and convolutions alone take.

    python -m tests.benchmarks.floors [NAME ...] [--out FILE]

This floor is about the least time of a program that computes the same products on this processor.
A step of PyTorch's program is recorded; then its matrix products, convolutions and attention are
computed again by PyTorch (oneDNN), or float32 products by NumPy's BLAS where it is faster.
Recurrent layers count by their products alone. Floor, mpchain and PyTorch take turns in this
process, on one thread by CPU time; the medians are compared. Our convolutions by tiles multiply
less often, so they may take less than their floor.
"""

import argparse
import importlib
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from tests.benchmarks import compare

FAMILIES = ("dense", "images", "sequences", "gans", *compare.NEWER)
WITHOUT_PRODUCTS = {"small_operations", "adam", "momentum_sgd"}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear"}
WHOLE = {"convolution", "convolution_backward"}
ATTENTION = "_scaled_dot_product"  # begins the names of kernels, forward and backward
TURN, WARM_UP = 0.06, 0.7  # seconds


def recorded(torch, step):
    """Returns the operations of a step that make up the floor, as functions without arguments."""
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            y = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            if name in PRODUCTS | WHOLE or name.startswith(ATTENTION):
                calls.append((name, func, args, kwargs or {}))
            elif name.startswith("mkldnn_rnn_layer"):
                calls.extend(_products_of_layer(torch, name, *args[:3]))
            return y

    with Recorder():
        step()
    return [_fastest(torch, *call) for call in calls]


def _products_of_layer(torch, name, x, W, R):
    """Yields the products of a recurrent layer: input (T, B, I), matrices (G, I) and (G, H)."""
    x, W, R = (a.detach() for a in (x, W, R))
    n_steps, batch, _ = x.shape
    h, g = torch.rand(batch, R.shape[1]), torch.rand(batch, len(R))
    rows, gates = x.reshape(n_steps * batch, -1), torch.rand(n_steps * batch, len(R))
    pairs = [(rows, W.t()), *[(h, R.t())] * n_steps]
    if name.endswith("backward"):
        states = torch.rand(len(rows), R.shape[1])
        pairs = [(gates.t(), rows), (gates.t(), states), (gates, W), *[(g, R)] * n_steps]
    for pair in pairs:
        yield "mm", torch.mm, pair, {}


def _fastest(torch, name, func, args, kwargs):
    """Returns a function that computes one operation: a float32 product by the faster library, any
    other operation by PyTorch."""

    def theirs():
        with torch.no_grad():
            func(*args, **kwargs)

    factors = [a.detach() for a in args if hasattr(a, "detach")][-2:]
    if name not in PRODUCTS or any(a.dtype != torch.float32 for a in factors):
        return theirs
    a, b = (a.numpy() for a in factors)

    def ours():
        np.matmul(a, b.T if name == "linear" else b)

    least = [min(_seconds(f, 1) for _ in range(4)) for f in (theirs, ours)]
    return theirs if least[0] <= least[1] else ours


def _seconds(step, n):
    begin = time.process_time()
    for _ in range(n):
        step()
    return (time.process_time() - begin) / n


def measure(torch, lib, name, turns):
    """Returns the median seconds of the floor, of mpchain and of PyTorch."""
    module = importlib.import_module(compare.WORKLOADS[name])
    theirs = getattr(module, f"{name}_pytorch")(torch)
    ours = getattr(module, f"{name}_ours")(lib)
    theirs()
    calls = recorded(torch, theirs)

    def floor():
        for call in calls:
            call()

    steps, seconds = (floor, ours, theirs), ([], [], [])
    end = time.process_time() + WARM_UP
    while time.process_time() < end:
        ours()
    counts = [max(1, int(TURN / max(_seconds(step, 1), 1e-6))) for step in steps]
    for _ in range(turns):
        for step, n, found in zip(steps, counts, seconds, strict=True):
            step()
            found.append(_seconds(step, n))
    return [statistics.median(found) for found in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads; by default all")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the table there, too")
    options = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":  # NumPy has read it already
        os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]])
    import torch

    import mpchain

    torch.set_num_threads(1)
    mpchain.backends.host_memory.keep_freed_memory()  # as a Trainer does
    sys.path.insert(0, str(compare.FOLDER))
    of_families = [name for name, file in compare.WORKLOADS.items() if file in FAMILIES]
    names = options.names or [name for name in of_families if name not in WITHOUT_PRODUCTS]
    title = f"{compare.machine()}, one thread, CPU time; torch {torch.__version__}"
    lines = [title, "", "| workload | floor ms | mpchain ms | PyTorch ms | floor / PyTorch |"]
    lines[-1] += " mpchain / PyTorch |"
    lines.append("|---|--:|--:|--:|--:|--:|")
    print(*lines, sep="\n", flush=True)
    ratios = []
    for name in names:
        floor, ours, theirs = measure(torch, mpchain, name, options.turns)
        ratios.append((floor / theirs, ours / theirs))
        cells = [f"{1e3 * s:.2f}" for s in (floor, ours, theirs)] + [f"{r:.2f}" for r in ratios[-1]]
        lines.append(f"| {' | '.join([name, *cells])} |")
        print(lines[-1], flush=True)
    mean = statistics.geometric_mean(ours for _, ours in ratios)
    above = sum(floor > 0.65 for floor, _ in ratios)
    lines += ["", f"Geometric mean of mpchain / PyTorch: {mean:.2f}; floor above 0.65 on {above}."]
    print(*lines[-2:], sep="\n")
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
