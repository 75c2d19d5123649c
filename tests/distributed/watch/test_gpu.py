"""Tests a rank that is lost while other ranks wait for it within NCCL, on the doubles."""

import pathlib
import shutil

import pytest

import tests
from tests.distributed import ranks

DOUBLES = pathlib.Path(tests.__file__).parent / "gpu" / "doubles"
PROGRAM = """
import os, signal
import cupy
import mpchain

comm = mpchain.create_communicator("pure_nccl", timeout=3)
mpchain.cuda.get_device_from_id(comm.intra_rank).use()
comm.allreduce(cupy.ones(3)).get()
if comm.rank == 1:
    os.kill(os.getpid(), signal.{signal})
x = comm.iallreduce(cupy.ones(3)).Wait()
print(float(x.sum()))
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the doubles need g++"),
]


@pytest.mark.long
@pytest.mark.parametrize("signal", ["SIGSTOP", "SIGKILL"])
def test_a_rank_that_is_lost_within_a_collective(signal, needs_mpirun):
    status, outputs, own_output = ranks.run(
        2,
        ["-c", PROGRAM.format(signal=signal)],
        timeout=60,
        environ={"PYTHONPATH": f"{ranks.ROOT}:{DOUBLES}"},
    )
    assert status not in (0, None), ranks.report(status, outputs, own_output)
    if signal == "SIGSTOP":  # the watchdog reports a stopped rank
        assert "s for rank 1 in iallreduce of (3,) float64" in outputs[0], outputs[0]
        assert "pending on the GPU" in outputs[0]
    else:  # mpirun notices a killed rank first
        assert "process rank 1 " in own_output, own_output
