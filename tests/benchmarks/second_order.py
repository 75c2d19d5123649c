"""Compares steps with derivatives in their loss: mpchain, PyTorch and jitted JAX.

Run ``python -m tests.benchmarks.second_order [NAME ...]``; ``workloads/second_order.py`` has the
computations. Each library runs in a separate process, and the processes take turns. CPU time is
measured with one thread, wall time with more. The results of the first two steps must agree. With
``--compile``, ``torch.compile`` compiles the loss function (for ``hvp``, the product with the
Hessian). If a variant fails, its error is printed.
"""

import argparse
import importlib.util
import math
import os
import pathlib
import statistics
import sys

from tests.benchmarks.side_by_side import Worker

FOLDER = pathlib.Path(__file__).parent / "workloads"
sys.path.insert(0, str(FOLDER))
VARIANTS = {
    "mpchain": ("mpchain", ""),
    "captured": ("mpchain", "common.captured = lib.capture"),
    "torch": ("torch", ""),
    "torch.compile": ("torch", "common.compiled = lib.compile"),
    "jax": ("jax", ""),
}
LONGEST_TURN = 0.2  # the longest turn in seconds, unless one step takes longer


def _text(variant, name, threads):
    library, change = VARIANTS[variant]
    if library == "jax":  # JAX reads the number of cores
        change = f"import os; os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[:threads]})"
    if library == "torch":
        change += f"\nlib.set_num_threads({threads})"
    return "\n".join(
        [
            f"import sys; sys.path.insert(0, {str(FOLDER)!r})",
            "import importlib, common",
            change if library == "jax" else "",
            f"lib = importlib.import_module({library!r})",
            change if library != "jax" else "",
            "import second_order",
            f"work = second_order.LIBRARIES[{library!r}](lib).step({name!r})",
            "def step():",
            "    try:",
            "        return work()",
            "    except Exception as error:",
            "        text = str(error).strip() or type(error).__name__",
            "        sys.exit('ERROR ' + text.splitlines()[0])",
        ]
    )


def measure(name, variants, threads, rounds):
    """Returns the median seconds of a step by variant, without the variants that fail."""
    workers = {}
    for variant in variants:
        try:
            worker = Worker(VARIANTS[variant][0], _text(variant, name, threads), threads, n_first=6)
            workers[variant] = worker, max(1, int(LONGEST_TURN / max(worker.run(3), 1e-5)))
        except RuntimeError:
            print(f"{name}: {variant} failed; its error is above")
    first = {variant: worker.first for variant, (worker, _) in workers.items()}
    expected = first["torch"]
    for variant, values in first.items():
        agree = all(
            math.isclose(a, b, rel_tol=2e-3, abs_tol=1e-4) for a, b in zip(values, expected)
        )
        if not agree:
            raise SystemExit(f"{name}: {variant} returns {values}, torch {expected}")
    for _ in range(rounds):
        for worker, repetitions in workers.values():
            worker.take_turn(repetitions)
    for worker, _ in workers.values():
        worker.close()
    return {variant: statistics.median(worker.seconds) for variant, (worker, _) in workers.items()}


def main():
    import second_order as workloads

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=workloads.NAMES)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="try torch.compile, too")
    args = parser.parse_args()
    variants = [v for v in VARIANTS if importlib.util.find_spec(VARIANTS[v][0])]
    variants = [v for v in variants if args.compile or v != "torch.compile"]
    for threads in args.threads:
        print(f"\n{threads} thread(s): ms of a step, and the time divided by PyTorch's\n")
        print("| step | " + " | ".join(variants) + " |\n|---|" + "--:|" * len(variants))
        ratios = {variant: [] for variant in variants}
        for name in args.names:
            seconds = measure(name, variants, threads, args.rounds)
            cells = []
            for variant in variants:
                if variant not in seconds:
                    cells.append("fails")
                    continue
                ratio = seconds[variant] / seconds["torch"]
                ratios[variant].append(ratio)
                cells.append(f"{seconds[variant] * 1e3:.2f} ({ratio:.2f})")
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        means = [f"{statistics.geometric_mean(r):.2f}" if r else "" for r in ratios.values()]
        print("| geometric mean | " + " | ".join(means) + " |", flush=True)


if __name__ == "__main__":
    main()
