"""Runs a command on several ranks under ``mpirun``, with a time limit and one output file per rank.

Each rank runs ``python ranks.py FOLDER COMMAND...``, which runs the command with its output in
``FOLDER/rank_<r>.txt``.
"""

import contextlib
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARK = "MPCHAIN_TEST_UNDER_MPIRUN"

# Open MPI prints this text when it sometimes fails to start for a temporary reason.
PASSING_FAILURE = "listener thread failed to start"


def why_not():
    """Returns why no ranks can be started on this machine; an empty string if they can."""
    if MARK in os.environ:
        return "runs mpirun itself, and so not under mpirun"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return "" if _mpirun() else "there is no mpirun"


def _mpirun():
    beside_python = os.path.dirname(sys.executable)
    return shutil.which("mpirun", path=beside_python + os.pathsep + os.environ.get("PATH", ""))


def environment():
    """Returns the environment variables of ranks, without those of a launcher and of pytest."""
    launcher = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "PYTEST_")
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(launcher)},
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CUPY_DOUBLE_DEVICES": "4",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def run(n_ranks, command, *, timeout=120, environ=None):
    """Runs a command (arguments after the interpreter) on every rank.

    The run is repeated if Open MPI fails to start for a temporary reason.

    Returns:
        The exit status (None if the time limit ended it), the list of the ranks' outputs, and
        mpirun's own output.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = start(n_ranks, command, folder, environ)
        try:
            own_output, _ = process.communicate(timeout=timeout)
            status = process.returncode
        except subprocess.TimeoutExpired:
            own_output, status = end(process), None
        outputs = outputs_in(folder, n_ranks)
    if PASSING_FAILURE in own_output and not any(outputs):
        return run(n_ranks, command, timeout=timeout, environ=environ)
    return status, outputs, own_output


def start(n_ranks, command, folder, environ=None):
    """Starts a command on every rank, with outputs in a folder; returns mpirun's process."""
    return subprocess.Popen(
        [_mpirun(), "-n", str(n_ranks), sys.executable, __file__, str(folder), *command],
        env=environment() | {MARK: str(n_ranks)} | (environ or {}),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def outputs_in(folder, n_ranks):
    """Returns the output of each rank."""
    files = [pathlib.Path(folder, f"rank_{rank}.txt") for rank in range(n_ranks)]
    return [file.read_text(errors="replace") if file.exists() else "" for file in files]


def end(process):
    """Ends mpirun and its ranks, and returns mpirun's output; first requests the end from mpirun,
    because only mpirun knows the ranks."""
    process.terminate()
    try:
        return process.communicate(timeout=5)[0]
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def report(status, outputs, own_output):
    """Returns the outputs to show after a failed run: the output of the first rank whose output
    shows a failure, or else of rank 0, then mpirun's."""
    signs = " failed", "Error", "Fatal Python error"
    failing = [r for r, text in enumerate(outputs) if any(sign in text for sign in signs)] or [0]
    ended = "went past its time limit" if status is None else f"exit status {status}"
    rank = failing[0]
    return f"{ended}\nrank {rank} of {len(outputs)}:\n{outputs[rank]}\nmpirun:\n{own_output}"


def _become_rank(folder, *command):
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
    file = os.open(os.path.join(folder, f"rank_{rank}.txt"), os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    _become_rank(*sys.argv[1:])
