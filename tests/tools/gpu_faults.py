"""Plants faults of GPU code in copies of the source; tests on the double of CuPy find each.

python -m tests.tools.gpu_faults
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]


class Fault(NamedTuple):
    """A fault, and what finds it.

    Attributes:
        what: what is wrong.
        file, old, new: the text to replace, which the file has once.
        test: the test, and further arguments of pytest.
        message: what the test then prints, a regular expression.
    """

    what: str
    file: str
    old: str
    new: str
    test: tuple[str, ...]
    message: str


FAULTS = [
    Fault(
        "a missing event",
        "mpchain/dataset/asynchronous_transfer.py",
        "        compute.wait_event(slot.end_of_copy)\n",
        "",
        ("tests/gpu/test_asynchronous_transfer.py",),
        "has no order with the access of another stream",
    ),
    Fault(
        "a dropped source",
        "mpchain/distributed/communicators/nccl.py",
        "self._in_use[event] = *arrays, _current_stream()",
        "self._in_use[event] = (_current_stream(),)",
        ("tests/gpu/test_nccl.py", "-k", "sources_are_kept"),
        "is freed at .* while another stream may still use it",
    ),
    Fault(
        "an implicit conversion",
        "mpchain/functions/noise.py",
        "uniform = random.source(x.xp)",
        "uniform = random.source(np)",
        ("tests/functions/test_noise.py", "-k", "zoneout"),
        "(Unsupported type .*numpy.ndarray|must be on one device)",
    ),
    Fault(
        "a kernel of mixed types",
        "mpchain/functions/declaration.py",
        "self.derivatives[index] is not None and _are_alike(arrays)",
        "self.derivatives[index] is not None and not isinstance(arrays[0], np.ndarray)",
        ("tests/functions/test_table.py", "-k", "where"),
        "Type is mismatched",
    ),
    Fault(
        "a wait of the host",
        "mpchain/functions/indexing.py",
        "    if is_gpu_array(t) and not config.debug:\n        return\n",
        "",
        ("tests/gpu/test_budgets.py", "-k", "perceptron"),
        "the host waits for the GPU",
    ),
    Fault(
        "work on another GPU than that of the arrays",
        "mpchain/optimizer.py",
        "return has_target and not self.target.device.is_current()",
        "return False",
        ("tests/gpu/test_other_gpu.py", "-k", "needs_no_current_gpu and Adam"),
        "is different from the current device",
    ),
    Fault(
        "a kernel for each parameter",
        "mpchain/update_rule.py",
        "        if is_gpu_array(group[0].array):\n            _update_group_on_gpu(group)\n",
        "        if is_gpu_array(group[0].array):\n            [p.update() for p in group]\n",
        ("tests/gpu/test_optimizers.py", "-k", "test_launches"),
        r"assert \[4, 12\] == \[1, 3\]",
    ),
    Fault(
        "wrong strides in a graph of cuDNN",
        "mpchain/kernels/cudnn.py",
        "Tensor(shape, packed(shape, channels_last), dtype) for shape in shapes",
        "Tensor(shape, packed(shape), dtype) for shape in shapes",
        ("tests/gpu/test_cudnn.py", "-k", "every_geometry and channels"),
        "Not equal to tolerance",
    ),
]


def plant(fault: Fault, folder: pathlib.Path) -> str:
    """Runs a fault's test in a copy of the source that has the fault; returns what it prints.

    Raises:
        AssertionError: the test does not find the fault.
    """
    for name in ("mpchain", "launch", "tests", "pyproject.toml", "setup.py"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    file = folder / fault.file
    text = file.read_text()
    assert text.count(fault.old) == 1, f"{fault.file} does not have once:\n{fault.old}"
    file.write_text(text.replace(fault.old, fault.new))
    command = [sys.executable, "-m", "pytest", "-q", "--gpu=double", "-m", "gpu", "--tb=short"]
    command += ["-p", "no:cacheprovider", *fault.test]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    printed = done.stdout + done.stderr
    found = done.returncode == 1 and re.search(fault.message, printed)
    assert found, f"{fault.what} is not found by {fault.test}:\n{printed[-3000:]}"
    return printed


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for fault in FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            printed = plant(fault, pathlib.Path(folder))
        print(f"{fault.what}: found by {fault.test[0]}: {printed.splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
