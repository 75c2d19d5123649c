"""Loses ranks at random moments, and prints how far training is from what it would have been.

``python -m tests.distributed.elastic --times 20`` trains each model of
``tests/distributed/elastic_models.py`` on four ranks undisturbed, then as often with ranks that
kill or stop themselves: one, two at once, or one after the other, rank 0 among them. It ends with
an error if losses, parameters or running averages differ by more than 1e-12, relative to the
largest of each array; at all, if the communicator is reproducible. With ``--nccl BINDING``, each
rank has an imitated GPU, and the double of NCCL sums the gradients.
"""

import argparse
import collections
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from mpchain.distributed.communicators.nccl_bindings import BINDINGS
from tests.distributed import ranks
from tests.distributed.elastic_models import FAULT, N_RANKS

DOUBLES = ranks.ROOT / "tests" / "gpu" / "doubles"
MODELS = ("mlp", "convnet", "lstm", "wgan", "sharded", "loop", "reproducible")
LIMIT = 1e-12
_TIME_LIMIT = 120
_BACK = re.compile(
    r"^mpchain: .*(?:started anew|went back (\d+) iterations to \d+ in ([\d.]+) s)", re.M
)

# How often each moment comes in a run of elastic_models, at most, by model.
_COUNTS = {
    "setup": 1,
    "keep": 5,
    "forward": 14,
    "backward": 14,
    "ready": 40,
    "sum": 40,
    "control": 14,
    "step": 14,
    "evaluator": 2,
    "checkpoint": 3,
    "checkpoint_end": 3,
}
_MORE = {"convnet": {"normalization": 14}, "reproducible": {"end_part": 30}}
_ON_GPUS = {"connect": 1, "run": 16, "begun": 12}
_FEWER = {
    "reproducible": ("ready", "sum"),
    "lstm": ("evaluator",),
    "wgan": ("evaluator",),
    "sharded": ("begun",),
    "loop": ("evaluator", "checkpoint", "checkpoint_end", "control"),
}


def why_not():
    """Returns why ranks cannot be lost here; empty where they can."""
    reason = ranks.why_not()
    if reason:
        return reason
    options = [sys.executable, "-m", "mpi4py", "--mpi-lib-version"]
    library = subprocess.run(options, check=False, capture_output=True, text=True, timeout=60)
    library = library.stdout
    return "" if library.startswith("Open MPI v5") else f"{library[:20].strip()} cannot lose ranks"


def train(model, folder, faults=(), n_ranks=N_RANKS, nccl=None, spares=0):
    """Trains a model on several ranks; returns the arrays of its outcome and what was printed.

    Args:
        model, folder, faults: as in :mod:`~tests.distributed.elastic_models`.
        n_ranks: number of ranks that train.
        nccl: a binding of NCCL, through which each rank uses an imitated GPU.
        spares: number of spare ranks.

    Raises:
        RuntimeError: the job has failed, or went past its time limit.
    """
    n = str(n_ranks + spares)
    command = [ranks._mpirun(), "-n", n, "--with-ft", "ulfm", sys.executable, "-m"]
    environ = ranks.environment() | {ranks.MARK: n, "MPCHAIN_SPARES": str(spares)}
    options = []
    if nccl is not None:
        options = [f"--nccl={nccl}"]
        environ["NCCL_DOUBLE_TIMEOUT"] = str(2 * _TIME_LIMIT)  # as NCCL, which waits forever
        environ["PYTHONPATH"] = os.pathsep.join([str(ranks.ROOT), str(DOUBLES)])
    process = subprocess.Popen(
        [*command, "tests.distributed.elastic_models", model, str(folder), *options, *faults],
        env=environ,
        cwd=ranks.ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_TIME_LIMIT)
    except subprocess.TimeoutExpired:
        output = ranks.end(process)
        raise RuntimeError(f"{model} {' '.join(faults)}: past the time limit\n{output}") from None
    finally:
        left = _end_session(process.pid)
    if left and not faults:
        raise RuntimeError(f"{model}: processes {left} were left behind")
    outcome = pathlib.Path(folder, "outcome.npz")
    if ranks.PASSING_FAILURE in output and not outcome.exists():
        return train(model, folder, faults, n_ranks, nccl, spares)
    if not outcome.exists() or FAULT in output:
        raise RuntimeError(f"{model} {' '.join(faults)}: exit {process.returncode}\n{output}")
    with np.load(outcome) as file:
        return dict(file), output


def delays(folder):
    """Returns the seconds after which each loss was first noticed."""
    times = {
        event: sorted(float(p.name.split("_")[1]) for p in pathlib.Path(folder).glob(f"{event}_*"))
        for event in ("lost", "noticed")
    }
    first = (next((t for t in times["noticed"] if t > lost), np.nan) for lost in times["lost"])
    return [seconds - lost for seconds, lost in zip(first, times["lost"], strict=True)]


def _end_session(pid):
    """Kills what is left of the processes of a job, which are in one session; returns their ids."""
    left = []
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == pid and fields[0] != "Z":
                    os.kill(int(folder.name), signal.SIGKILL)
                    left.append(int(folder.name))
            except (OSError, ProcessLookupError):
                pass
    return left


def difference(outcome, reference):
    """Returns the largest difference of two outcomes, relative to the largest of each array."""
    assert outcome.keys() == reference.keys()
    worst = 0.0
    for name in reference:
        a, b = outcome[name], reference[name]
        if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
            return np.inf
        scale = np.nanmax(np.abs(b), initial=0) or 1
        worst = max(worst, float(np.nanmax(np.abs(a - b), initial=0) / scale))
    return worst


def is_as_good(model, outcome, reference):
    """Returns whether outcomes are equal, as far as sums of other numbers of ranks round alike."""
    if model == "reproducible":  # but evaluators are not
        names = [name for name in reference if "validation" not in name]
        if any(not np.array_equal(outcome[name], reference[name]) for name in names):
            return False
    return difference(outcome, reference) <= LIMIT


def draw_faults(random, model, nccl=None):
    """Returns faults at random moments, and what kind they are."""
    counts = _COUNTS | _MORE.get(model, {}) | (_ON_GPUS if nccl else {})
    moments = [m for m in sorted(counts) if m not in _FEWER.get(model, ())]

    def draw(rank, kind="kill", moment=None):
        moment = moment or moments[random.randint(len(moments))]
        return f"{kind}:{rank}:{moment}:{random.randint(counts.get(moment, 1)) + 1}"

    kind = ["one", "two at once", "stopped", "two in a row"][min(random.randint(6), 3)]
    first, second = (int(rank) for rank in random.permutation(N_RANKS)[:2])
    if random.randint(3) == 0:
        first, second = 0, second or 1
    if kind == "one":
        return kind, [draw(first)]
    if kind == "stopped":
        return kind, [draw(first, "stop")]
    fault = draw(first)
    if kind == "two at once":
        if fault.split(":")[2] == "checkpoint_end":  # which rank 0 alone does
            fault = f"kill:{first}:forward:5"
        return kind, [fault, fault.replace(f":{first}:", f":{second}:", 1)]
    during = ["recovery", "shrink"][random.randint(2)] if nccl else "recovery"
    return kind, [fault, draw(second, moment=during if random.randint(2) else None)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="number of runs of each model")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nccl", choices=BINDINGS, help="on imitated GPUs, through this binding")
    parser.add_argument("--spares", type=int, default=0, help="number of spare ranks")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    bad, counts = 0, collections.Counter()
    print(f"{'model':12}  {'kind':12}  {'faults':36} lost  back   s    noticed/s  difference")
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            reference, _ = train(model, folder, nccl=options.nccl)
        random = np.random.RandomState([options.seed, MODELS.index(model)])
        for _ in range(options.times):
            kind, faults = draw_faults(random, model, options.nccl)
            begun, output, text = time.perf_counter(), "", ""
            with tempfile.TemporaryDirectory() as folder:
                try:
                    more = {"nccl": options.nccl, "spares": options.spares}
                    outcome, output = train(model, folder, faults, **more)
                    noticed = " ".join(f"{seconds:.2f}" for seconds in delays(folder))
                    value = difference(outcome, reference)
                    text = f"{noticed:10} {value:.1e}"
                    is_bad = not is_as_good(model, outcome, reference)
                except RuntimeError as error:
                    is_bad, text = True, f"FAILED\n{error}"
            back = _BACK.findall(output)
            n_back, seconds = sum(int(n or 0) for n, _ in back), sum(float(s or 0) for _, s in back)
            counts[model, kind, "bad" if is_bad else "equal"] += 1
            bad += is_bad
            print(
                f"{model:12}  {kind:12}  {' '.join(faults):36} {len(back):4}  {n_back:4} "
                f"{seconds:5.2f}  {text}  ({time.perf_counter() - begun:.1f} s)",
                flush=True,
            )
    for key, n in sorted(counts.items()):
        print(*key, n)
    sys.exit(f"{bad} runs differ or failed" if bad else 0)


if __name__ == "__main__":
    main()
