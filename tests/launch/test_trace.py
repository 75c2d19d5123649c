import importlib.util

import pytest

from launch import mpirun
from tests.profiling import chrome_format

SCRIPT = """
    import numpy as np
    import mpchain
    import mpchain.functions as F
    from mpchain import links, optimizers

    comm = mpchain.create_communicator()
    model = links.Linear(2, 1)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    for _ in range(3):
        optimizer.update(lambda: F.sum(model(np.ones((2, 2), np.float32))))
"""


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.long), 2])
def test_trace_of_a_program_that_does_not_know_of_it(run, script, tmp_path, n):
    if n > 1 and (mpirun.find() is None or importlib.util.find_spec("mpi4py") is None):
        pytest.skip("needs mpchain[mpi]")
    assert run("-n", n, "--trace", "made/trace", script(SCRIPT))[0] == 0
    folder = tmp_path / "made" / "trace"
    assert sorted(path.name for path in folder.iterdir()) == ["trace.json", "trace.txt"]
    events = chrome_format.parse(folder / "trace.json")
    assert {event["pid"] for event in events} == set(range(n))
    steps = [event["args"]["step"] for event in events if event.get("cat") == "step"]
    assert sorted(steps) == sorted([1, 2, 3] * n)
    assert (folder / "trace.txt").read_text("utf-8").startswith(f"{n} rank")


def test_trace_without_mpchain(run, script, tmp_path):
    assert run("-n", 1, "--trace", "trace", script("print(1)"))[0] == 0
    assert list((tmp_path / "trace").iterdir()) == []
