"""Plants faults of GPU code in copies of the source; tests on the double of CuPy must find each
fault.

python -m tests.tools.gpu_faults
"""

import argparse
import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]


class Fault(NamedTuple):
    """A fault, and the test that finds it.

    Attributes:
        what: a description of the fault.
        file: the file that gets the fault.
        place: the qualified name of the function or constant that gets the fault.
        old, new: an expression or statements that occur once in the function or constant, and their
            replacement. They are compared as syntax trees; in CUDA they are text.
        test: the test, and further arguments of pytest.
        message: a regular expression for the output of the failing test.
        in_cuda: whether the fault is in a string of CUDA.
    """

    what: str
    file: str
    place: str
    old: str
    new: str
    test: tuple[str, ...]
    message: str
    in_cuda: bool = False


FAULTS = [
    Fault(
        "a missing event",
        "mpchain/dataset/asynchronous_transfer.py",
        "ConcatWithAsyncTransfer._transfer",
        "compute.wait_event(slot.end_of_copy)",
        "None",
        ("tests/gpu/test_asynchronous_transfer.py",),
        "has no order with the access of another stream",
    ),
    Fault(
        "a dropped source",
        "mpchain/distributed/communicators/nccl.py",
        "OverNccl._beside",
        "(*arrays, _current_stream())",
        "(_current_stream(),)",
        ("tests/gpu/test_nccl.py", "-k", "sources_are_kept"),
        "is freed at .* while another stream may still use it",
    ),
    Fault(
        "an implicit conversion",
        "mpchain/functions/noise.py",
        "zoneout",
        "draws(x)",
        "random.source(np)",
        ("tests/functions/test_noise.py", "-k", "zoneout"),
        "(Unsupported type .*numpy.ndarray|must be on one device)",
    ),
    Fault(
        "a kernel of mixed types",
        "mpchain/functions/declaring/declaration.py",
        "Declaration._fused",
        "not _are_alike(arrays)",
        "False",
        ("tests/functions/test_table.py", "-k", "where"),
        "Type is mismatched",
    ),
    Fault(
        "a wait of the host",
        "mpchain/functions/indexing.py",
        "check_labels",
        "if is_gpu_array(t) and not config.debug:\n    return",
        "pass",
        ("tests/gpu/test_budgets.py", "-k", "perceptron"),
        "the host waits for the GPU",
    ),
    Fault(
        "work on another GPU than that of the arrays",
        "mpchain/optimizer.py",
        "Optimizer._is_elsewhere",
        "target is not None and not target.device.is_current()",
        "False",
        ("tests/gpu/test_other_gpu.py", "-k", "needs_no_current_gpu and Adam"),
        "is different from the current device",
    ),
    Fault(
        "a kernel for each parameter",
        "mpchain/update_rule.py",
        "update_all",
        "_update_group(group, inverse)",
        "[p.update() for p in group]",
        ("tests/gpu/test_optimizers.py", "-k", "test_launches"),
        r"assert \[4, 12\] == \[1, 3\]",
    ),
    Fault(
        "wrong strides in a graph of cuDNN",
        "mpchain/kernels/gpu/cudnn.py",
        "convolution_request",
        "packed(shape, channels_last)",
        "packed(shape)",
        ("tests/gpu/test_cudnn.py", "-k", "every_geometry and channels"),
        "Not equal to tolerance",
    ),
    Fault(
        "a workspace that is too small",
        "mpchain/kernels/gpu/cudnn.py",
        "_Plan.__call__",
        'xp.empty(self.n_bytes, "u1")',
        'xp.empty(self.n_bytes // 2, "u1")',
        ("tests/gpu/test_cudnn.py", "-k", "configuration_chooses"),
        "the workspace: .* bytes at .* are not in an array's memory",
    ),
    Fault(
        "memory that is freed while kernels use it",
        "mpchain/dataset/asynchronous_transfer.py",
        "ConcatWithAsyncTransfer.__del__",
        "self._stream.wait_event(self._last_compute.record())",
        "None",
        ("tests/gpu/test_asynchronous_transfer.py",),
        "is freed at .* while another stream may still use it",
    ),
    Fault(
        "a sum that begins before the gradients are there",
        "mpchain/distributed/communicators/nccl.py",
        "OverNccl._beside",
        "self._stream.wait_event(made)",
        "None",
        ("tests/gpu/test_nccl.py", "-k", "work_of_nccl"),
        "has no order with the access of another stream",
    ),
    Fault(
        "an update that does not wait for the sum of gradients",
        "mpchain/distributed/communicators/nccl.py",
        "OverNccl._wait_for",
        "stream.wait_event(event)",
        "None",
        ("tests/gpu/test_nccl.py", "-k", "work_of_nccl"),
        "has no order with the access of another stream",
    ),
    Fault(
        "a wrong dtype for NCCL",
        "mpchain/distributed/communicators/nccl.py",
        "OverNccl._run",
        "TYPES[dtype_name or sent.dtype.name]",
        'TYPES["float64"]',
        ("tests/gpu/test_nccl.py", "-k", "collectives_run"),
        "uses .* bytes of a buffer with",
    ),
    Fault(
        "a learning rate that is rounded",
        "mpchain/kernels/gpu/cuda_steps.py",
        "_numbers",
        "computed.type(x)",
        "computed.type(np.float16(x))",
        ("tests/gpu/test_optimizers.py", "-k", "bits_are"),
        "Arrays are not equal",
    ),
    Fault(
        "a part of a parameter that is not updated",
        "mpchain/kernels/gpu/cuda_steps.py",
        "_table",
        "-(-sizes // _ELEMENTS)",
        "np.maximum(sizes // _ELEMENTS, 1)",
        ("tests/gpu/test_optimizers.py", "-k", "bits_are"),
        "Arrays are not equal",
    ),
    Fault(
        "another mask of dropout than on the host",
        "mpchain/kernels/gpu/cuda_random.py",
        "_ROUNDS",
        "0xCD9E8D57ull",
        "0xCD9E8D59ull",
        ("tests/gpu/test_kernels.py", "-k", "random_words"),
        "Arrays are not equal",
        in_cuda=True,
    ),
    Fault(
        "rows of joined arrays that are mixed up",
        "mpchain/kernels/gpu/cuda_rows.py",
        "_joining",
        "y = x{k}[row * n{k} + j];",
        "y = x{k}[j];",
        ("tests/gpu_doctor/test_check.py", "-k", "gpu_is_as_the_cpu and LSTM"),
        "AssertionError: 0[.][0-9]",
        in_cuda=True,
    ),
    Fault(
        "a learning rate that stays in a graph",
        "mpchain/kernels/gpu/cuda_steps.py",
        "_numbers",
        "current.graph is not None",
        "False",
        ("tests/captured/test_cuda_graph.py", "-k", "rates_of_a_schedule"),
        "Arrays are not equal",
    ),
    Fault(
        "random draws that are not made again for a graph",
        "mpchain/captured/cuda_graph.py",
        "CudaGraph._begin",
        "self._cupy.copyto(array, draw())",
        "None",
        ("tests/captured/test_cuda_graph.py", "-k", "dropout"),
        "Arrays are not equal",
    ),
    Fault(
        "an array that a graph reads and does not keep",
        "mpchain/captured/cuda_graph.py",
        "CudaGraph.note_inputs",
        "self._kept.append(x.array)",
        "None",
        ("tests/captured/test_cuda_graph.py", "-k", "keeps_the_arrays"),
        "was freed and may have another owner",
    ),
    Fault(
        "memory of a graph in the pool that all share",
        "mpchain/captured/cuda_graph.py",
        "CudaGraph._at_work",
        "self._memory.serving()",
        "stream",
        ("tests/captured/test_cuda_graph.py", "-k", "the_same_bits"),
        "the pool that all share",
    ),
    Fault(
        "arguments that are not copied to a graph",
        "mpchain/captured/cuda_graph.py",
        "CudaGraph._begin",
        "self._cupy.copyto(place, array)",
        "None",
        ("tests/captured/test_cuda_graph.py", "-k", "the_same_bits"),
        "a replay computed other gradients",
    ),
    Fault(
        "a graph that is compared on memory that holds its arguments",
        "mpchain/captured/cuda_graph.py",
        "CudaGraph.__init__",
        "[other_values(x) for x in arrays]",
        "[x.copy() for x in arrays]",
        ("tests/captured/test_cuda_graph_proof.py", "-k", "do_not_reach_the_graph"),
        "DID NOT WARN",
    ),
    Fault(
        "arguments that only the eager step writes",
        "mpchain/captured/cuda_graph.py",
        "CudaGraph.replay",
        "self._written",
        "()",
        ("tests/captured/test_cuda_graph_proof.py", "-k", "that_a_step_writes"),
        "Not equal to tolerance",
    ),
    Fault(
        "rows of one index that are joined without the last chunk",
        "mpchain/kernels/gpu/cuda_rows.py",
        "_JOINED",
        "c * length < n &&",
        "(c + 1) * length < n &&",
        ("tests/gpu/test_kernels.py", "-k", "ends_of_chunks"),
        "Arrays are not equal",
        in_cuda=True,
    ),
]


def replaced(text: str, fault: Fault) -> str:
    """Returns the text of a source with the fault.

    Raises:
        AssertionError: the place is missing, or does not contain ``old`` exactly once.
    """
    tree = ast.parse(text)
    place: ast.AST = tree
    for name in fault.place.split("."):
        found = [node for node in place.body if _defines(node, name)]
        assert len(found) == 1, f"{fault.file} does not define {fault.place} once"
        (place,) = found
    if fault.in_cuda:
        lines = text.splitlines(keepends=True)
        own = "".join(lines[place.lineno - 1 : place.end_lineno])
        n, own = own.count(fault.old), own.replace(fault.old, fault.new)
        lines[place.lineno - 1 : place.end_lineno] = [own]
        text = "".join(lines)
    else:
        n = _replace(place, _nodes(fault.old), _nodes(fault.new))
        text = ast.unparse(tree) + "\n"
    assert n == 1, f"{fault.place} of {fault.file} has {n} times, not once:\n{fault.old}"
    return text


def _defines(node, name):
    if isinstance(node, ast.Assign):
        return any(isinstance(x, ast.Name) and x.id == name for x in node.targets)
    return getattr(node, "name", None) == name


def _nodes(text):
    """Returns the expression of a text, or its statements."""
    nodes = ast.parse(text).body
    return [nodes[0].value] if isinstance(nodes[0], ast.Expr) else nodes


def _replace(place, old, new):
    """Replaces consecutive nodes within a node; returns the number of replacements."""
    dumps = lambda nodes: [ast.dump(x) if isinstance(x, ast.AST) else x for x in nodes]
    n, wanted = 0, dumps(old)
    for parent in list(ast.walk(place)):
        for field, value in ast.iter_fields(parent):
            nodes = value if isinstance(value, list) else [value]
            for i in range(len(nodes)):
                if dumps(nodes[i : i + len(old)]) == wanted:
                    nodes[i : i + len(old)] = new
                    n += 1
            setattr(parent, field, nodes if isinstance(value, list) else nodes[0])
    return n


def with_fault(fault: Fault) -> str:
    """Returns the text of the file with the fault; raises the errors of :func:`replaced`."""
    return replaced((ROOT / fault.file).read_text("utf-8"), fault)


def plant(fault: Fault, folder: pathlib.Path) -> str:
    """Runs a fault's test in a copy of the source with the fault; returns the output.

    Raises:
        AssertionError: the test does not find the fault.
        subprocess.TimeoutExpired: the test takes more than 600 seconds.
    """
    for name in ("mpchain", "launch", "tests", "pyproject.toml", "setup.py"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    (folder / fault.file).write_text(with_fault(fault))
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


def main() -> int:
    """Returns the number of faults that are not found."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    n_missed = 0
    for fault in FAULTS:
        begin = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                plant(fault, pathlib.Path(folder))
            verdict = f"found by {' '.join(fault.test)}"
        except (AssertionError, subprocess.TimeoutExpired) as error:
            verdict, n_missed = f"NOT FOUND: {error}", n_missed + 1
        print(f"{time.monotonic() - begin:6.1f} s  {fault.what}: {verdict}", flush=True)
    return n_missed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
