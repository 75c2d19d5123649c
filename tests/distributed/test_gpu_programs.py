"""Tests programs on several ranks with a GPU each, on the doubles of CuPy and NCCL."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import tests
from tests.distributed import ranks
from tests.examples import programs

DOUBLES = pathlib.Path(tests.__file__).parent / "gpu" / "doubles"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the doubles need g++"),
]


def run(n_ranks, *command, **environ):
    """Runs a program on ranks that see the doubles; returns mpirun's status, the ranks' outputs,
    and a report."""
    environ["PYTHONPATH"] = f"{ranks.ROOT}:{DOUBLES}"
    status, outputs, own_output = ranks.run(n_ranks, command, timeout=240, environ=environ)
    return status, outputs, ranks.report(status, outputs, own_output)


IDIOM = """
import cupy
import numpy as np
import mpchain
from mpchain import functions as F, links as L, optimizers

comm = mpchain.create_communicator("{name}")
{choose}
model = L.Linear(3, 2)
model.to_device(f"@cupy:{{comm.intra_rank}}")
optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
x = mpchain.get_device(f"@cupy:{{comm.intra_rank}}").send(np.ones((4, 3), "f"))
for _ in range(3):
    optimizer.update(lambda x: F.sum(model(x) ** 2), x)
assert model.W.array.device.id == comm.intra_rank
print(comm.gpu.id, cupy.cuda.get_device_id())
"""


@pytest.mark.parametrize("choose", [True, False])
def test_a_gpu_for_each_rank(choose, needs_mpirun):
    """A program chooses the GPU as ChainerMN's programs do, or only by the device of its model."""
    idiom = "mpchain.cuda.get_device_from_id(comm.intra_rank).use()"
    program = IDIOM.format(name="pure_nccl", choose=idiom if choose else "")
    status, outputs, report = run(2, "-c", program)
    assert status == 0, report
    assert [text.split() for text in outputs] == [["0", "0"], ["1", "1" if choose else "0"]]


def test_a_gpu_for_each_rank_under_the_launcher(needs_mpirun, tmp_path):
    idiom = "mpchain.cuda.get_device_from_id(comm.intra_rank).use()"
    script = tmp_path / "program.py"
    script.write_text(IDIOM.format(name="pure_nccl", choose=idiom))
    environ = ranks.environment() | {"PYTHONPATH": f"{ranks.ROOT}:{DOUBLES}"}
    done = subprocess.run(
        [sys.executable, "-m", "launch", "-n", "2", str(script)],
        env=environ,
        cwd=ranks.ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line[-3:] for line in done.stdout.splitlines()} >= {"0 0", "1 1"}, done.stdout


def test_two_ranks_on_one_gpu(needs_mpirun):
    program = "import cupy, mpchain\n"
    program += "mpchain.create_communicator('pure_nccl').allreduce(cupy.ones(3))"
    status, outputs, report = run(2, "-c", program)
    assert status not in (0, None), report
    message = r"ranks 0 and 1 use the same GPU, 0000:00:00.0 of host .*'non_cuda_aware'"
    assert re.search(message, "".join(outputs)), report


# This code runs a script, then prints which GPU and which functions of NCCL it has used.
COUNTED = """
import collections, runpy, sys
import mpchain
from mpchain.backends.nccl_bindings import Connection

calls, run = collections.Counter(), Connection.run
def counted(self, name, *args, **options):
    calls[name, mpchain.cuda.Device().id] += 1
    run(self, name, *args, **options)
Connection.run = counted
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("NCCL:", sorted(calls))
"""


@pytest.mark.parametrize(
    ("script", "options", "on_gpus", "tolerance"),
    [
        ("mnist/train_mnist.py", ["--epoch", "2", "--double"], [], 1e-9),
        ("wgan_gp/train_wgan_gp.py", ["--test"], ["--gpu"], 1e-4),
    ],
)
def test_an_example_on_two_gpus_computes_what_a_cpu_does(
    script, options, on_gpus, tolerance, needs_mpirun, tmp_path
):
    alone, together = tmp_path / "alone", tmp_path / "together"
    programs.run(script, *options, "--out", alone)
    command = [str(programs.ROOT / "examples" / script), *options, *on_gpus, "--out", str(together)]
    status, outputs, report = run(2, "-c", COUNTED, *command)
    assert status == 0, report
    for gpu, output in enumerate(outputs):
        assert f"('all_reduce', {gpu})" in output.splitlines()[-1], report
    expected, actual = map(programs.log_of, (alone, together))
    assert len(expected) == 2
    programs.check_alike(actual, expected, tolerance)
