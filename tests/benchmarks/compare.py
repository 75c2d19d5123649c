"""Compares mpchain with PyTorch, and with Chainer, on training steps, files and data.

Run ``python -m tests.benchmarks.compare [NAME ...]``. Each workload runs in one process per
library, by turns: with one thread, CPU time is measured; with two, wall time. Where a workload's
step returns a loss, those of the first two steps must agree. Chainer takes part if
MPCHAIN_TEST_CHAINER_PYTHON names a Python that has it. ``--out RESULTS.md`` writes the table with
the machine and the date.
"""

import argparse
import contextlib
import datetime
import importlib
import math
import pathlib
import platform
import re
import statistics

from tests.benchmarks.side_by_side import Worker, interpreter

FOLDER = pathlib.Path(__file__).parent / "workloads"
FILES = ("dense", "images", "sequences", "gans", "files_and_data")
WORKLOADS = {
    name: file
    for file in FILES
    for name in re.findall(
        r"^def ([a-z]\w*)_ours\(lib\)", (FOLDER / f"{file}.py").read_text(), re.M
    )
}
WITHOUT_CHAINER = {"transformer"}
BY_WALL_TIME = {"worker_processes"}  # whose processes do the work
LONGEST_TURN = 0.3  # seconds


def text_of(name, library, threads):
    """The Python text that defines ``step`` of a workload."""
    lines = [f"import sys\nsys.path.insert(0, {str(FOLDER)!r})", f"import {library}"]
    if library == "torch":
        lines += [f"torch.set_num_threads({threads})"]
    kind = "pytorch" if library == "torch" else "ours"
    lines += [f"import {WORKLOADS[name]}", f"step = {WORKLOADS[name]}.{name}_{kind}({library})"]
    return "\n".join(lines) + "\n"


def measure(name, libraries, threads, rounds):
    """Runs a workload by turns; returns the workers by library."""
    with contextlib.ExitStack() as stack:
        workers = {}
        for library in libraries:
            clock = "wall_time" if name in BY_WALL_TIME else None
            worker = Worker(library, text_of(name, library, threads), threads, clock)
            stack.callback(worker.process.kill)
            workers[library] = worker
        n = max(1, math.ceil(LONGEST_TURN / workers["mpchain"].run(1)))
        for _ in range(rounds):
            for worker in workers.values():
                worker.seconds.append(worker.run(n))
        for worker in workers.values():
            worker.close()
    return workers


def check_losses(name, workers):
    """Raises ValueError unless the libraries computed the same."""
    expected = workers["torch"].first
    for library, worker in workers.items():
        for x, y in zip(worker.first, expected, strict=True):
            if x is not None and y is not None and not math.isclose(x, y, rel_tol=2e-3):
                raise ValueError(f"{name}: losses of {library}: {worker.first}; torch: {expected}")


def row_of(name, workers):
    """The row of a workload in the table, and its ratio to PyTorch."""
    medians = {library: statistics.median(w.seconds) for library, w in workers.items()}
    ours = sorted(workers["mpchain"].seconds)
    spread = (ours[-1 - len(ours) // 4] - ours[len(ours) // 4]) / medians["mpchain"]
    ratio = medians["mpchain"] / medians["torch"]
    memory = workers["mpchain"].peak / workers["torch"].peak
    chainer = medians["mpchain"] / medians["chainer"] if "chainer" in medians else math.nan
    cells = [f"{medians['mpchain'] * 1e3:.2f}", f"{ratio:.2f}", f"{chainer:.2f}"]
    return [name, *cells, f"{memory:.2f}", f"{spread:.0%}"], ratio


def machine():
    """The processor's name."""
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=pathlib.Path, help="a Markdown file to write")
    args = parser.parse_args()
    if unknown := set(args.names) - set(WORKLOADS):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    versions = [
        f"{m} {importlib.import_module(m).__version__}" for m in ("mpchain", "torch", "numpy")
    ]
    lines = [f"{machine()}; {', '.join(versions)}; {datetime.date.today()}", ""]
    print(lines[0])
    for threads in args.threads:
        kind = "one thread, CPU time" if threads == 1 else f"{threads} threads, wall time"
        head = ["workload", "ms", "/ PyTorch", "/ Chainer", "memory / PyTorch", "spread"]
        lines += [f"## {kind}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        print(f"{kind}\n{'':24}", *(f"{cell:>16}" for cell in head[1:]))
        ratios = []
        for name in args.names:
            libraries = ["mpchain", "torch"]
            if interpreter("chainer") and name not in WITHOUT_CHAINER:
                libraries.append("chainer")
            workers = measure(name, libraries, threads, args.rounds)
            check_losses(name, workers)
            row, ratio = row_of(name, workers)
            ratios.append(ratio)
            lines.append(f"| {' | '.join(row)} |")
            print(f"{name:24}", *(f"{cell:>16}" for cell in row[1:]), flush=True)
        mean = statistics.geometric_mean(ratios)
        ahead = sum(ratio < 1 for ratio in ratios)
        lines += ["", f"Geometric mean {mean:.2f}; ahead on {ahead} of {len(ratios)}.", ""]
        print(lines[-2])
    if args.out:
        args.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
