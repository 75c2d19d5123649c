"""Estimates training steps on an H100, by mpchain and by PyTorch, without a GPU.

Run with ``python -m tests.benchmarks.gpu_paper [NAME ...]``; ``--kernels`` adds the longest
kernels, ``--least`` the smallest possible number of bytes of each operation. mpchain's launches and
bytes are counted in a whole step of full size on the double of CuPy; PyTorch's are counted from the
operations that it dispatches (``tests/benchmarks/paper/theirs.py``).
``tests/benchmarks/paper/card.py`` has the constants and their sources. The time of a step is the
longer of the host's and the GPU's time, and that of a captured step is the time of its graph. On
the GPU, a kernel takes the time of a launch and the longer of the times for bytes and operations.
"""

import argparse
import collections
import pathlib
import sys

_DOUBLES = pathlib.Path(__file__).parents[1] / "gpu" / "doubles"
TARGETS = {
    "ResNet-50": 1.1,
    "GPT-2": 1.0,
    "GPT-2 with dropout": 1.15,
    "GPT-2, dropout by sample": 1.15,
    "MLP": 0.2,
    "LSTM": 1.25,
}
"""Maps a model to the limit of mpchain's time divided by PyTorch's."""
CAPTURED = "MLP", "LSTM"
"""Models whose steps mpchain captures; PyTorch runs all models eagerly."""


def show_kernels(step, n=15):
    """Prints the names of kernels that take the most time in all."""
    rows = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for kernel in step.kernels:
        row = rows[kernel.name]
        row[0] += 1
        row[1] += kernel.n_bytes / 1e9
        row[2] += 1e3 * kernel.seconds()
    for name, (count, gigabytes, ms) in sorted(rows.items(), key=lambda row: -row[1][2])[:n]:
        print(f"    {name[:42]:42} {count:5} launches {gigabytes:8.3f} GB {ms:7.3f} ms")


def compare(name, shows_kernels, shows_least):
    """Prints the row of a model, and returns mpchain's time divided by PyTorch's."""
    from tests.benchmarks.paper import least, ours, theirs

    own, other = ours.count(name), theirs.count(name)
    seconds, their_seconds = own.seconds(name in CAPTURED), other.seconds()
    ratio = seconds / their_seconds
    floor = least.of(name)
    of_least = "" if floor is None else f"{own.n_bytes / floor.total():6.2f}"
    print(
        f"{name:24} {1e3 * seconds:7.3f} {1e3 * their_seconds:7.3f} {ratio:6.2f} {TARGETS[name]:6}"
        f" {len(own.kernels):6} {len(other.kernels):6} {own.n_bytes / 1e9:8.2f}"
        f" {other.n_bytes / 1e9:8.2f} {of_least}"
    )
    if shows_kernels:
        for label, step in (("mpchain", own), ("PyTorch", other)):
            print(f"  {label}")
            show_kernels(step)
    if shows_least and floor is not None:
        for operation, n_bytes in floor.items():
            print(f"    {operation:45} {n_bytes / 1e9:8.3f} GB")
        print(f"    {'the least of all':45} {floor.total() / 1e9:8.3f} GB")
    return ratio


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=list(TARGETS), metavar="NAME")
    parser.add_argument("--kernels", action="store_true", help="the longest kernels of each")
    parser.add_argument("--least", action="store_true", help="the least bytes of operations")
    args = parser.parse_args()
    sys.path[:0] = [str(_DOUBLES), str(_DOUBLES / "rehearsal")]
    print("Estimates for an H100 SXM, no measurement: milliseconds, launches, GB.")
    print(f"{'':24} mpchain PyTorch  ratio  limit launches (both)    GB (both)   GB of the least")
    for name in args.names:
        compare(name, args.kernels, args.least)


if __name__ == "__main__":
    main()
