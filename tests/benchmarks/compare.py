"""Compares mpchain with PyTorch, JAX and Chainer on training steps, files and data.

Run ``python -m tests.benchmarks.compare [NAME ...]``. Each workload runs in one process per
variant, in turns: with one thread, CPU time is measured; with two, wall time. If a workload's step
returns a loss, the losses of the first two steps must agree. These variants are measured:

* ``mpchain``, and ``captured``: the same step after ``mpchain.capture``;
* ``torch``, and with ``--compile`` also ``compiled``: the model after ``torch.compile``;
* ``jax``: jitted, on the workloads of ``workloads/jitted.py``, if it is installed;
* ``chainer`` if MPCHAIN_TEST_CHAINER_PYTHON names a Python that has it.

``--ranks`` adds the times of two ranks (see :mod:`tests.benchmarks.two_ranks`), and ``--out
RESULTS.md`` writes the tables with the machine and the date. On some workloads, the operations
of PyTorch's matrix products and convolutions are also counted: a share is the part of the machine's
peak of products that mpchain's step reached.
"""

import argparse
import contextlib
import datetime
import importlib
import importlib.util
import math
import os
import pathlib
import platform
import re
import statistics
import time

from tests.benchmarks import two_ranks
from tests.benchmarks.side_by_side import Worker, interpreter

FOLDER = pathlib.Path(__file__).parent / "workloads"
NEWER = ("vision", "attention", "tables")  # programs in these files use features that Chainer lacks
FILES = ("dense", "images", "sequences", "gans", *NEWER, "files_and_data")


def _tried(name):
    """Returns the docstring of a workload's PyTorch program, which says what was tried for it."""
    text = (FOLDER / f"{WORKLOADS[name]}.py").read_text()
    found = re.search(rf'^def {name}_pytorch\(torch\):\n    """(.*?)"""', text, re.M | re.S)
    return " ".join(found[1].split()) if found else "As its documentation writes it."


def _functions(file, ending):
    text = (FOLDER / f"{file}.py").read_text()
    return dict.fromkeys(re.findall(rf"^def ([a-z]\w*){ending}:", text, re.M), file)


WORKLOADS = {name: file for file in FILES for name in _functions(file, r"_ours\(lib\)")}
OF_JAX = _functions("jitted", r"\(jax\)")
WITHOUT_CHAINER = {"transformer", *(n for f in NEWER for n in _functions(f, r"_ours\(lib\)"))}
WITHOUT_CAPTURE = {"adam", "momentum_sgd", *_functions("files_and_data", r"_ours\(lib\)")}
WITHOUT_CHAINER |= {
    n for f in ("vision", "attention", "tables") for n in _functions(f, r"_ours\(lib\)")
}
COMPILED = {"mlp", "mlp_of_100_units", "lenet", "vgg", "resnet18", "resnet50", "transformer"}
COMPILED |= {"resnet50_inference", "language_model", "language_model_of_cells"}
BY_WALL_TIME = {"worker_processes"}  # other processes do the work
COUNTED = {"mlp", "lenet", "vgg", "resnet18", "resnet50", "resnet50_inference", "transformer"}
# The workload of nn.LSTM is not counted, because PyTorch does not count its kernel.
COUNTED |= {"language_model_of_cells"}
LONGEST_TURN = 0.3  # the seconds of mpchain's turn, which is rounded up to whole steps
# The most steps and the most seconds of the warm-up, after which loops with NumPy's bits have
# replaced NumPy, as in a program that runs for a minute.
WARM_UP, LONGEST_WARM_UP = 1200, 5
COLUMNS = {
    "/ PyTorch": ("mpchain", "torch"),
    "captured / PyTorch": ("captured", "torch"),
    "/ JAX": ("mpchain", "jax"),
    "captured / JAX": ("captured", "jax"),
    "compiled / PyTorch": ("compiled", "torch"),
    "/ Chainer": ("mpchain", "chainer"),
}
_REPLACED = {
    "captured": """
import common, mpchain
steps_of = []
def capture(function):
    steps_of.append(mpchain.capture(function))
    return steps_of[-1]
common.captured = capture
""",
    "compiled": """
import common, torch
common.compiled = torch.compile
""",
}
_COUNTED = """
def n_operations():
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()
"""
_PEAK = """
import numpy as np
from mpchain.kernels import product
x = np.random.RandomState(0).rand(2, 2048, 2048).astype('f')
def step():
    product(*x)
"""


def text_of(name, kind, threads):
    """Returns the Python text that defines ``step`` for a workload."""
    library = {"captured": "mpchain", "compiled": "torch"}.get(kind, kind)
    lines = [f"import sys\nsys.path.insert(0, {str(FOLDER)!r})"]
    if kind == "jax":  # JAX reads the number of cores
        lines += [f"import os\nos.sched_setaffinity(0, {_cores(threads)})"]
    lines += [f"import {library}", _REPLACED.get(kind, "")]
    if library == "torch":
        lines += [f"torch.set_num_threads({threads})"]
    file, ending = WORKLOADS[name], {"torch": "_pytorch", "jax": ""}.get(library, "_ours")
    if library == "jax":
        file = OF_JAX[name]
    lines += [f"import {file}", f"step = {file}.{name}{ending}({library})"]
    return "\n".join(lines) + "\n" + (_COUNTED if kind == "torch" else "")


def _cores(threads):
    return sorted(os.sched_getaffinity(0))[:threads]


def kinds_for(name, with_compile):
    """Returns the variants of a workload."""
    kinds = ["mpchain", "torch"]
    if name not in WITHOUT_CAPTURE:
        kinds.append("captured")
    if name in OF_JAX and importlib.util.find_spec("jax"):
        kinds.append("jax")
    if with_compile and name in COMPILED:
        kinds.append("compiled")
    if interpreter("chainer") and name not in WITHOUT_CHAINER:
        kinds.append("chainer")
    return kinds


def measure(name, kinds, threads, rounds):
    """Runs the variants of a workload in turns; returns the workers by kind, and a dict with the
    reason against a captured step and the counted operations."""
    found = {}
    with contextlib.ExitStack() as stack:
        workers = {}
        for kind in kinds:
            clock = "wall_time" if name in BY_WALL_TIME else None
            n_first = 5 if kind == "captured" else 3
            environment = {}
            if kind == "jax" and threads == 1:
                environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
            worker = Worker(
                kind, text_of(name, kind, threads), threads, clock, n_first, environment
            )
            stack.callback(worker.process.kill)
            workers[kind] = worker
        if "captured" in workers:
            found["reason"] = workers["captured"].ask("[s.reason for s in steps_of][:1]")[0]
        seconds = workers["mpchain"].run(1)
        n = max(1, math.ceil(LONGEST_TURN / seconds))
        for kind in {"mpchain", "captured"} & workers.keys():
            workers[kind].run(min(WARM_UP, math.ceil(LONGEST_WARM_UP / seconds)))
        for _ in range(rounds):
            for worker in workers.values():
                worker.take_turn(n)
        if name in COUNTED:
            found["n_operations"] = workers["torch"].ask("n_operations()")
        for worker in workers.values():
            worker.close()
    return workers, found


def peak(threads):
    """Returns the largest number of operations of matrix products in a second."""
    worker = Worker("mpchain", _PEAK, threads)
    seconds = [worker.run(5) for _ in range(7)]
    worker.close()
    return 2 * 2048**3 / min(seconds)


def check_losses(name, workers):
    """Raises ValueError unless the losses of the libraries agree."""
    expected = workers["torch"].first
    for kind, worker in workers.items():
        for x, y in zip(worker.first, expected, strict=True):
            if x is not None and y is not None and not math.isclose(x, y, rel_tol=2e-3):
                raise ValueError(f"{name}: losses of {kind}: {worker.first}; torch: {expected}")


def row_of(name, workers, found, most):
    """Returns the cells of a workload in the table, and its ratios by column."""
    medians = {kind: statistics.median(w.seconds) for kind, w in workers.items()}
    ours = sorted(workers["mpchain"].seconds)
    spread = (ours[-1 - len(ours) // 4] - ours[len(ours) // 4]) / medians["mpchain"]
    ratios = {}
    for column, (kind, reference) in COLUMNS.items():
        if kind in medians and reference in medians:
            if kind != "captured" or found["reason"] is None:
                ratios[column] = medians[kind] / medians[reference]
    ratios["memory / PyTorch"] = workers["mpchain"].peak / workers["torch"].peak
    share = found.get("n_operations", 0) / medians["mpchain"] / most
    cells = {column: f"{ratio:.2f}" for column, ratio in ratios.items()}
    cells |= {"ms": f"{medians['mpchain'] * 1e3:.2f}", "spread": f"{spread:.0%}"}
    cells["share of peak"] = f"{share:.0%}" if share > 0.1 else ""
    return {"workload": name, **cells}, ratios


def machine():
    """Returns the name of the processor."""
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.processor()


def summary(ratios):
    """Returns lines that summarize the ratios of all workloads."""
    lines = []
    for column in COLUMNS:
        values = [row[column] for row in ratios if column in row]
        if values:
            mean = statistics.geometric_mean(values)
            ahead = sum(value < 1 for value in values)
            name = "mpchain " * column.startswith("/") + column
            line = f"{name}: geometric mean {mean:.2f}, below 1 on {ahead} of {len(values)}."
            lines.append(f"- {line}")
    return lines


def table(names, threads, rounds, with_compile):
    """Measures workloads, and returns the lines of their table."""
    most = peak(threads)
    kinds = {name: kinds_for(name, with_compile) for name in names}
    present = {kind for some in kinds.values() for kind in some}
    columns = [c for c, pair in COLUMNS.items() if present.issuperset(pair)]
    head = ["workload", "ms", *columns, "memory / PyTorch", "share of peak", "spread"]
    title = "one thread, CPU time" if threads == 1 else f"{threads} threads, wall time"
    lines = [f"## {title}", "", f"Peak of matrix products: {most / 1e9:.0f} GFLOP/s", ""]
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    print(f"{title}\n{'':24}", *(f"{cell:>18}" for cell in head[1:]))
    ratios, reasons = [], []
    for name in names:
        try:
            workers, found = measure(name, kinds[name], threads, rounds)
            check_losses(name, workers)
        except (RuntimeError, ValueError) as error:  # the other workloads are still measured
            reasons.append(f"- {name} was not measured: {error}")
            continue
        cells, of_name = row_of(name, workers, found, most)
        ratios.append(of_name)
        lines.append(f"| {' | '.join(cells.get(column, '') for column in head)} |")
        print(f"{name:24}", *(f"{cells.get(c, ''):>18}" for c in head[1:]), flush=True)
        if found.get("reason"):
            reasons.append(f"- {name} is not captured: {found['reason']}")
    lines += ["", *summary(ratios), *reasons, ""]
    if threads == 1:
        lines += ["PyTorch's programs:", "", *(f"- {name}: {_tried(name)}" for name in names), ""]
    print(*summary(ratios), *reasons, sep="\n")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads; by default all")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="measure torch.compile as well")
    parser.add_argument("--ranks", action="store_true", help="measure two ranks as well")
    parser.add_argument("--out", type=pathlib.Path, help="a Markdown file to write")
    args = parser.parse_args()
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)  # these variables would change OpenBLAS's kernels
    if unknown := set(args.names) - set(WORKLOADS):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    modules = [m for m in ("mpchain", "torch", "jax", "numpy") if importlib.util.find_spec(m)]
    versions = [f"{m} {importlib.import_module(m).__version__}" for m in modules]
    today = f"{datetime.date.today()}, load {os.getloadavg()[0]:.1f} before"
    lines = [f"{machine()}, {os.cpu_count()} cores; {', '.join(versions)}; {today}", ""]
    print(lines[0])
    begin = time.monotonic()
    for threads in args.threads:
        names = args.names or list(WORKLOADS)
        lines += table(names, threads, args.rounds, args.compile)
    if args.ranks:
        lines += two_ranks.table(args.rounds)
    lines += [f"All of it took {(time.monotonic() - begin) / 60:.0f} minutes."]
    print(lines[-1])
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
