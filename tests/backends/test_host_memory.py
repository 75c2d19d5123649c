"""Tests that the C library keeps freed memory, and gives it to large arrays of later steps."""

import platform
import subprocess
import sys

import numpy as np
import pytest

from mpchain.backends import host_memory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs GNU's C library"),
]
_N_STEPS, _PAGES = 20, 2048
_PROGRAM = f"""
import resource
import numpy as np
{{}}

def step():
    for _ in range(3):
        np.empty({_PAGES} * 512 // 3).fill(1)

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({_N_STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(line, **variables):
    """Returns the number of page faults in steps that each need 8 MiB in three arrays, after a line
    of Python."""
    # NumPy's huge pages would hide the page faults.
    environment = {"NUMPY_MADVISE_HUGEPAGE": "0", "OPENBLAS_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-c", _PROGRAM.format(line)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


_LAUNCHED = """
import sys, types, mpchain
sys.modules["mpchain_launch_starter"] = types.SimpleNamespace(creates_communicator=lambda ends: 0)
mpchain.create_communicator()
"""


@pytest.mark.parametrize(
    "training",
    [
        "import mpchain; mpchain.keep_freed_memory()",
        "import mpchain.testing; mpchain.testing.get_trainer_with_mock_updater().run()",
        pytest.param("import mpchain; mpchain.capture(print)", marks=pytest.mark.annex("captured")),
        _LAUNCHED,
    ],
    ids=["public function", "Trainer", "capture", "launcher"],
)
def test_steps_get_the_memory_that_was_freed(training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert page_faults(training) < _PAGES


def test_importing_mpchain_changes_nothing():
    program = """if True:
        import sys
        called = []
        sys.setprofile(lambda frame, *_: called.append(frame.f_code.co_name))
        import mpchain.training, mpchain.distributed
        for name in dir(mpchain):
            getattr(mpchain, name)
        print("find_spec" in called, "keep_freed_memory" in called)
    """
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, text=True, timeout=60).split() == ["True", "False"]


@pytest.mark.parametrize(
    "variables",
    [
        {"MALLOC_TRIM_THRESHOLD_": "0"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=100000"},
    ],
    ids=str,
)
def test_the_settings_of_the_user_win(variables):
    line = "import mpchain; mpchain.keep_freed_memory()"
    assert page_faults(line, **variables) > _N_STEPS * _PAGES / 2


@pytest.mark.parametrize("is_behind_head", [True, False])
def test_addresses(is_behind_head, monkeypatch):
    monkeypatch.setattr(host_memory, "_IS_BEHIND_HEAD", is_behind_head)
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for array in (x, x.T, x[1:], x[:, ::-1], x.view(np.memmap), np.empty((0, 3))):
        assert host_memory.address(array).value == array.ctypes.data
