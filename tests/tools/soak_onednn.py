"""Runs oneDNN's convolutions and products with several threads for a long time.

    python -m tests.tools.soak_onednn [--minutes 60] [--threads 2] [--seed 0]

Convolutions have random geometries, most of them with three spatial axes, and products have random
sizes. Each result must have the same bits as the reference, or be close to it if a convolution is
computed by tiles. If a case takes longer than a minute, threads probably wait for each other: the
program prints the stacks of all threads and ends. The last seed that it printed is that of the case
that hung.
"""

import argparse
import faulthandler
import os
import sys
import time

LIMIT = 60.0  # the time limit in seconds of a case, which usually takes milliseconds
CASES, CASES_OF_TILES = 200, 20  # the numbers of cases of a seed


def _check_convolutions(rng):
    import mpchain
    from tests.kernels import test_geometries as geometries

    with mpchain.using_config("kernels", ("onednn",)):
        for i in range(CASES):
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            case = geometries._draw_convolution(rng, deep=i % 2)
            if wrong := geometries._wrong_convolutions(geometries.Memory(), rng, *case):
                raise SystemExit(f"{case}: {wrong}")


def _check_tiles(rng):
    import mpchain
    from tests.kernels import test_geometries as geometries

    with mpchain.using_config("kernels", ("winograd",)):
        for _ in range(CASES_OF_TILES):
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            case = geometries._draw_square_convolution(rng, channels=150)
            if wrong := geometries._wrong_convolutions(geometries.Memory(), rng, *case):
                raise SystemExit(f"{case}: {wrong}")


def _check_products(rng):
    import numpy as np

    from mpchain.kernels.cpu import onednn

    for _ in range(CASES):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        m, k, n = np.exp(rng.uniform(0, 6.5, 3)).astype(int)
        # Sums of small integers are exact in any order.
        a = rng.integers(-3, 4, (m, k)).astype("f")
        b = rng.integers(-3, 4, (k, n)).astype("f")
        turned = [np.ascontiguousarray(x.T).T if rng.integers(2) else x for x in (a, b)]
        if not np.array_equal(onednn._product(*turned), a.astype(int) @ b.astype(int)):
            raise SystemExit(f"a product of {m}x{k} by {k}x{n} is wrong")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # NumPy and OpenMP read these variables once, when they are loaded.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    import numpy as np

    end, seed = time.monotonic() + args.minutes * 60, args.seed
    while time.monotonic() < end:
        print(f"seed {seed}", file=sys.stderr, flush=True)
        rng = np.random.default_rng(seed)
        _check_convolutions(rng)
        _check_tiles(rng)
        _check_products(rng)
        seed += 1
    faulthandler.cancel_dump_traceback_later()
    n = (seed - args.seed) * CASES
    n_tiles = 3 * (seed - args.seed) * CASES_OF_TILES
    print(
        f"{args.minutes:g} minutes: {3 * n} convolutions, {n_tiles} by tiles and {n} products, "
        "all right"
    )


if __name__ == "__main__":
    main()
