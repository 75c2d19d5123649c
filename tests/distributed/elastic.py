"""Loses ranks at random moments, and prints how much the results of training differ.

``python -m tests.distributed.elastic --times 20`` trains each model of
``tests/distributed/elastic_models.py`` on four ranks without losses, then 20 times with ranks that
are killed or stopped: one, two at once, or one after the other, including rank 0. Some ranks end
themselves, at moments drawn from those of the training without losses. Other ranks are killed by
this process at any time, most often within MPI. Faults are drawn again, a limited number of times,
if ranks were not lost as planned. The program fails if losses, parameters or running averages
differ by more than 1e-12, relative to the largest number of each array; with a reproducible
communicator, if they differ at all, except for results of evaluators. With ``--nccl BINDING``, each
rank has an imitated GPU, and the double of NCCL sums the gradients.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from mpchain.backends.nccl_bindings import BINDINGS
from tests.distributed import ranks
from tests.distributed.elastic_models import FAULT, N_RANKS, OUTSIDE

DOUBLES = ranks.ROOT / "tests" / "gpu" / "doubles"
MODELS = ("mlp", "convnet", "lstm", "wgan", "sharded", "loop", "reproducible", "counted")
LIMIT = 1e-12
_TIME_LIMIT = 120  # the time limit in seconds
_BACK = re.compile(
    r"^mpchain: .*(?:started anew|went back (\d+) iterations to \d+ in ([\d.]+) s)", re.M
)

_MOST_DRAWS = 10  # the largest number of draws of faults for a run
_BEFORE_COPIES = ("setup", "connect", "keep")  # no copy exists yet at these moments
_KINDS = ("one", "two at once", "stopped", "two in a row")
_KINDS_OUTSIDE = ("outside", "outside, stopped", "outside, two", "outside, two")
# The longest time in seconds between two kills; the ranks recover from the first.
_BETWEEN_TWO = 0.6


def why_not():
    """Returns why ranks cannot be lost on this machine; an empty string if they can."""
    reason = ranks.why_not()
    if reason:
        return reason
    options = [sys.executable, "-m", "mpi4py", "--mpi-lib-version"]
    library = subprocess.run(options, check=False, capture_output=True, text=True, timeout=60)
    library = library.stdout
    return "" if library.startswith("Open MPI v5") else f"{library[:20].strip()} cannot lose ranks"


def train(model, folder, faults=(), *, nccl=None, spares=0, limit=_TIME_LIMIT):
    """Trains a model on several ranks; returns the arrays of the result, and the printed output.

    Args:
        model, folder, faults: as in :mod:`~tests.distributed.elastic_models`.
        nccl: a binding of NCCL, through which each rank uses an imitated GPU.
        spares: number of spare ranks.
        limit: number of seconds after which the job is ended.

    Raises:
        RuntimeError: the job failed, exceeded its time limit, or left processes behind.
    """
    n = str(N_RANKS + spares)
    command = [ranks._mpirun(), "-n", n, "--with-ft", "ulfm", sys.executable, "-m"]
    environ = ranks.environment() | {ranks.MARK: n, "MPCHAIN_SPARES": str(spares)}
    options = []
    if nccl is not None:
        options = [f"--nccl={nccl}"]
        environ["NCCL_DOUBLE_TIMEOUT"] = str(2 * limit)  # the real NCCL would wait forever
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
    outside = [fault for fault in faults if f":{OUTSIDE}:" in fault]
    threading.Thread(target=_lose, args=(outside, pathlib.Path(folder), process)).start()
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        output = ranks.end(process)
        raise RuntimeError(f"{model} {' '.join(faults)}: past the time limit\n{output}") from None
    finally:
        left = _end_session(process.pid)
    if left and not faults:
        raise RuntimeError(f"{model}: processes {left} were left behind")
    outcome = pathlib.Path(folder, "outcome.npz")
    if ranks.PASSING_FAILURE in output and not outcome.exists():
        return train(model, folder, faults, nccl=nccl, spares=spares, limit=limit)
    if not outcome.exists() or FAULT in output:
        raise RuntimeError(f"{model} {' '.join(faults)}: exit {process.returncode}\n{output}")
    with np.load(outcome) as file:
        return dict(file), output


def _lose(faults, folder, process):
    """Kills or stops ranks a given time after all ranks have begun to train."""
    pids = {}
    while len(pids) < N_RANKS and process.poll() is None:
        time.sleep(1e-3)  # no event exists to wait for, so poll
        pids = {rank: int(pid) for _, rank, pid in _times(folder, "trains")}
    begun = time.monotonic()
    after = lambda fault: float(fault.split(":")[3])
    for fault in sorted(faults, key=after):
        kind, rank, *_ = fault.split(":")
        while time.monotonic() < begun + after(fault):
            time.sleep(1e-3)  # no event exists to wait for, so poll
        if process.poll() is None and not _times(folder, "done"):
            (folder / f"lost_{time.time():.6f}_{rank}").touch()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[rank], {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])


def _times(folder, event):
    """Returns the times of an event in order, with the other parts of the file names."""
    names = (path.name.split("_")[1:] for path in pathlib.Path(folder).glob(f"{event}_*"))
    return sorted((float(seconds), *rest) for seconds, *rest in names)


def delays(folder):
    """Returns how many seconds after each loss a rank first noticed it."""
    noticed = [seconds for seconds, *_ in _times(folder, "noticed")]
    first = lambda lost: next((seconds for seconds in noticed if seconds > lost), np.nan)
    return [first(lost) - lost for lost, _ in _times(folder, "lost")]


def came_to_pass(kind, faults, folder):
    """Returns whether the ranks were lost as planned; two losses in a row must come one after the
    other."""
    lost = _times(folder, "lost")
    if {rank for _, rank in lost} != {fault.split(":")[1] for fault in faults}:
        return False
    (begin, *_), (end, *_) = lost[0], lost[-1]
    return kind != "two in a row" or any(begin < t < end for t, *_ in _times(folder, "noticed"))


def _end_session(pid):
    """Kills the remaining processes of a job, which form one session; returns their process IDs."""
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
    """Returns the largest difference between two results, relative to the largest number of each
    array."""
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
    """Returns whether results are equal, up to the rounding of sums on other numbers of ranks."""
    if model == "reproducible":  # evaluators are not reproducible
        names = [name for name in reference if "validation" not in name]
        if any(not np.array_equal(outcome[name], reference[name]) for name in names):
            return False
    return difference(outcome, reference) <= LIMIT


def draw_faults(random, counts, during=("recovery",)):
    """Draws faults at random moments.

    Args:
        random: a ``RandomState``.
        counts: for each rank, the number of times that it comes to each moment.
        during: moments at which ranks recover from a loss.

    Returns:
        The kind of the faults, and a list of faults.
    """
    kind = _KINDS[min(random.randint(6), 3)]
    first, second = (int(rank) for rank in random.permutation(N_RANKS)[:2])
    if random.randint(3) == 0:
        first, second = 0, second or 1
    at_once = counts[first] & counts[second]  # the smaller counts
    moment, count = _draw_moment(random, at_once if kind == "two at once" else counts[first])
    fault = "stop" if kind == "stopped" else "kill"
    faults = [f"{fault}:{first}:{moment}:{count}"]
    if kind == "two at once":
        faults.append(f"kill:{second}:{moment}:{count}")
    elif kind == "two in a row":
        moment_and_count = _draw_moment(random, counts[second])
        if random.randint(2) and moment not in _BEFORE_COPIES:
            moment_and_count = during[random.randint(len(during))], 1
        faults.append("kill:{}:{}:{}".format(second, *moment_and_count))
    return kind, faults


def draw_faults_outside(random, seconds):
    """Draws faults that another process causes, during a training that takes ``seconds``."""
    kind = _KINDS_OUTSIDE[random.randint(len(_KINDS_OUTSIDE))]
    first, second = (int(rank) for rank in random.permutation(N_RANKS)[:2])
    at = random.uniform(0, seconds)
    faults = [f"{'stop' if 'stopped' in kind else 'kill'}:{first}:{OUTSIDE}:{at:.4f}"]
    if "two" in kind:
        faults.append(f"kill:{second}:{OUTSIDE}:{at + random.uniform(0, _BETWEEN_TWO):.4f}")
    return kind, faults


def _draw_moment(random, counts):
    moment = sorted(counts)[random.randint(len(counts))]
    return moment, random.randint(counts[moment]) + 1


def _undisturbed(model, **options):
    """Trains without losses; returns the result, how often each rank came to each moment, and the
    time in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        outcome, _ = train(model, folder, **options)
        files = [pathlib.Path(folder, f"counts_{rank}.json") for rank in range(N_RANKS)]
        counts = [collections.Counter(json.loads(file.read_text())) for file in files]
        (*_, (begun, *_)), ((end, *_), *_) = _times(folder, "trains"), _times(folder, "done")
        return outcome, counts, end - begun


def _compare(model, faults, reference, folder, **options):
    """Trains with faults; returns whether the result is equal, the difference, and a text."""
    begun = time.perf_counter()
    try:
        outcome, output = train(model, folder, faults, **options)
    except RuntimeError as error:
        return False, np.nan, f"FAILED\n{error}"
    value = difference(outcome, reference)
    back = _BACK.findall(output)
    n_back, seconds = sum(int(n or 0) for n, _ in back), sum(float(s or 0) for _, s in back)
    noticed = " ".join(f"{seconds:.2f}" for seconds in delays(folder))
    text = f"{len(back):4}  {n_back:4} {seconds:5.2f}  {noticed:10} {value:.1e}"
    taken = f"  ({time.perf_counter() - begun:.1f} s)"
    return is_as_good(model, outcome, reference), value, text + taken


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="number of runs of each model")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nccl", choices=BINDINGS, help="on imitated GPUs, through this binding")
    parser.add_argument("--spares", type=int, default=0, help="number of spare ranks")
    parser.add_argument(
        "--by", default="both", choices=["both", "ranks", OUTSIDE], help="who kills the ranks"
    )
    parser.add_argument(
        "--limit", type=float, default=_TIME_LIMIT, help="seconds after which a training is ended"
    )
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    during = ("recovery", "shrink") if options.nccl in ("pynccl", "nccl4py") else ("recovery",)
    results, more = [], {"nccl": options.nccl, "limit": options.limit}
    print(f"{'model':12}  {'kind':16}  {'faults':36} lost  back   s    noticed/s  difference")
    for model in options.models:
        reference, counts, seconds = _undisturbed(model, **more)
        random = np.random.RandomState([options.seed, MODELS.index(model)])
        n_left, n_drawn = options.times, 0
        while n_left:
            if options.by == "both":
                by = ("ranks", OUTSIDE)[random.randint(2)]
            else:
                by = options.by
            if by == OUTSIDE:
                kind, faults = draw_faults_outside(random, seconds)
            else:
                kind, faults = draw_faults(random, counts, during)
            with tempfile.TemporaryDirectory() as folder:
                is_equal, value, text = _compare(
                    model, faults, reference, folder, spares=options.spares, **more
                )
                all_lost, noticed = came_to_pass(kind, faults, folder), delays(folder)
            n_drawn += 1
            result = "equal" if is_equal else "bad"
            if is_equal and not all_lost:
                result = "drawn again" if n_drawn < _MOST_DRAWS else "bad"
                text += "  not all were lost as planned"
            if result != "drawn again":
                n_left, n_drawn = n_left - 1, 0
            results.append((model, kind, result, value, noticed))
            print(f"{model:12}  {kind:16}  {' '.join(faults):36} {text}", flush=True)
    _print_summary(results)
    n_bad = sum(result == "bad" for _, _, result, *_ in results)
    sys.exit(f"{n_bad} runs differ or failed" if n_bad else 0)


def _print_summary(results):
    for key, n in sorted(collections.Counter(result[:3] for result in results).items()):
        print(*key, n)
    for name in ("killed", "stopped"):
        lists = [x for _, kind, _, _, x in results if ("stopped" in kind) == (name == "stopped")]
        seconds = [x for noticed in lists for x in noticed if not np.isnan(x)]
        if seconds:
            text = f"{np.mean(seconds):.2f} s on average, {max(seconds):.2f} s at most"
            print(f"{len(seconds)} {name}: noticed after {text}")
    n = collections.Counter(result for _, _, result, *_ in results)
    worst = max((value for *_, value, _ in results if not np.isnan(value)), default=np.nan)
    print(f"{n['equal']} equal, {n['drawn again']} drawn again, {n['bad']} bad; {worst:.1e} worst")


if __name__ == "__main__":
    main()
