"""Measures what mpchain-launch adds to the start of a program, compared with plain mpirun.

    python -m tests.benchmarks.measure_start [--ranks 2] [--repetitions 20]

Both run the same script, by turns. `started` is the time until the script runs on all ranks, and
`ended` that until the command is back. On a busy machine the least times say more than the medians.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = "import os, time; os.write(1, b'%.6f\\n' % time.clock_gettime(time.CLOCK_MONOTONIC))\n"


def measure(command, environment):
    """Returns the seconds until the script runs on all ranks, and until the end."""
    start = time.monotonic()
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    end = time.monotonic()
    return max(map(float, answer.stdout.split())) - start, end - start


def main():
    """Prints a table."""
    sys.path.insert(0, str(ROOT))
    from launch import mpirun

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=20)
    options = parser.parse_args()
    starter = mpirun.find()
    environment = {
        **os.environ,
        **starter.variables(os.environ, options.ranks, {}),
        "PYTHONPATH": str(ROOT),
    }
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "script.py")
        pathlib.Path(script).write_text(SCRIPT)
        n = str(options.ranks)
        before = starter.command(options.ranks, {}, options.ranks > 2, [])
        commands = {
            "mpirun": [*before, sys.executable, "-m", "mpi4py", script],
            "mpchain-launch": [sys.executable, "-m", "launch", "-n", n, "--no-prefix", script],
        }
        times = {name: [] for name in commands}
        for _ in range(options.repetitions):
            for name, command in commands.items():
                times[name].append(measure(command, environment))
    print(f"{starter.flavour}, {n} ranks, {options.repetitions} repetitions, seconds")
    for kind, choose in (("median", statistics.median), ("least", min)):
        rows = {name: list(map(choose, zip(*all_))) for name, all_ in times.items()}
        rows["added"] = [b - a for a, b in zip(*rows.values())]
        for name, (started, ended) in rows.items():
            print(f"{kind:<7} {name:<15} started {started:.3f}  ended {ended:.3f}")


if __name__ == "__main__":
    main()
