"""Compares every function of Chainer 7.8.1, forward and gradient, with mpchain's.

``python -m tests.oracle.functions [WORD ...]`` compares the cases whose name contains one of the
words (without words, all cases) and prints the differences. The environment variable
MPCHAIN_TEST_CHAINER_PYTHON names the interpreter of Chainer's environment; there, this file runs as
``python -m tests.oracle.functions chainer FOLDER`` and writes its results into the folder.
"""

import collections
import contextlib
import importlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import warnings

import numpy as np

from tests.oracle.function_cases import CASES

VARIABLE = "MPCHAIN_TEST_CHAINER_PYTHON"
MEMORY = 6 * 10**9
TIMEOUT = 280  # the time limit in seconds; all cases take about 20
TOLERANCES = {"float16": 4e-3, "mixed": 4e-3, "float32": 1e-6, "float64": 2e-14}


class Framework:
    """mpchain or Chainer, with the methods that run cases."""

    def __init__(self, name):
        self.module = importlib.import_module(name)
        self.functions = importlib.import_module(f"{name}.functions")
        self.utils = importlib.import_module(f"{name}.utils")

    def names(self):
        """Returns the names of the framework's functions."""
        found = vars(self.functions).items()
        return [n for n, f in found if callable(f) and not (n[0] == "_" or isinstance(f, type))]

    def has(self, case):
        return hasattr(self.functions, case.function)

    def run(self, case, dtype):
        """Calls the function; returns its results by name.

        These are the outputs ("y0", ...), the gradients by input ("gx", ...; "gdata" is that of a
        sparse matrix) and what constant arrays hold afterwards ("x after").
        """
        drawn = case.draw(dtype)
        arguments = {
            name: self.module.Variable(array) if variable else array
            for name, (array, variable) in drawn.items()
        }
        scope = {"F": self.functions, "np": np, "utils": self.utils, **arguments}
        np.random.seed(0)
        with self.configured(case.config):
            result = eval(f"F.{case.function}({case.arguments})", scope)
            outputs = list(flatten(result))
            found = {f"y{i}": np.asarray(array_of(y)) for i, y in enumerate(outputs)}
            if not case.forward_only:
                found |= self.gradients(outputs, arguments)
                if "matrix" in scope:  # a sparse matrix makes the Variable of its numbers itself
                    found["gdata"] = scope["matrix"].data.grad
        constants = [name for name, (_, variable) in drawn.items() if not variable]
        found |= {f"{name} after": np.asarray(arguments[name]) for name in constants}
        return found

    def configured(self, config):
        """Sets entries of the configuration; returns a context manager that resets them."""
        stack = contextlib.ExitStack()
        for name, value in config.items():
            stack.enter_context(self.module.using_config(name, value))
        return stack

    def gradients(self, outputs, arguments):
        """Returns the gradients of the inputs that get one, for the same gradients of the outputs
        on both sides."""
        inputs = {n: x for n, x in arguments.items() if isinstance(x, self.module.Variable)}
        ys = [y for y in outputs if isinstance(y, self.module.Variable)]
        ys = [y for y in ys if y.dtype.kind == "f"]
        random = np.random.RandomState(1)
        for y in ys:
            gy = np.asarray(random.randn(*y.shape), np.float16)
            y.grad = gy.astype(y.dtype)
        self.module.backward(ys)
        return {f"g{n}": x.grad for n, x in inputs.items() if x.grad is not None}

    def results(self, cases):
        """Runs all cases; returns (arrays, failures) by "name|dtype|result" and "name|dtype"."""
        arrays, failures = {}, {}
        for case in cases:
            for dtype in case.dtypes if self.has(case) else ():
                key = f"{case.name}|{dtype}"
                try:
                    found = self.run(case, dtype)
                except Exception as error:  # the report contains any error
                    failures[key] = f"{type(error).__name__}: {error}"
                else:
                    arrays |= {f"{key}|{name}": array for name, array in found.items()}
        return arrays, failures


def flatten(result):
    """Yields the outputs in nested tuples and lists."""
    if isinstance(result, (tuple, list)):
        for item in result:
            yield from flatten(item)
    elif result is not None:
        yield result


def array_of(y):
    return getattr(y, "array", y)


def quiet():
    """Turns off warnings, because the results of overflow are compared, too."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")


def serve(folder):
    """Runs all cases in the process in Chainer's environment."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    quiet()
    chainer = Framework("chainer")
    arrays, failures = chainer.results(CASES)
    folder = pathlib.Path(folder)
    names = list(arrays)
    np.savez(folder / "arrays.npz", **{str(i): arrays[name] for i, name in enumerate(names)})
    (folder / "names.json").write_text(json.dumps([names, failures, chainer.names()]))


def ask_chainer():
    """Runs all cases in Chainer's environment; returns (arrays, failures, function names)."""
    root = str(pathlib.Path(__file__).parents[2])
    with tempfile.TemporaryDirectory() as folder:
        command = [os.environ[VARIABLE], "-m", "tests.oracle.functions", "chainer", folder]
        environment = os.environ | {"PYTHONPATH": root}
        process = subprocess.Popen(command, cwd=root, env=environment, start_new_session=True)
        try:
            status = process.wait(TIMEOUT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if status:
            raise RuntimeError(f"Chainer's process ended with status {status}")
        names, failures, functions = json.loads(pathlib.Path(folder, "names.json").read_text())
        with np.load(pathlib.Path(folder, "arrays.npz")) as arrays:
            return {name: arrays[str(i)] for i, name in enumerate(names)}, failures, functions


class Oracle:
    """Chainer's results, and the comparison of mpchain's results with them.

    Attributes:
        failures: error messages of Chainer, by "case|dtype".
        functions_of_chainer: the names of its functions.
        counts: how often each kind of comparison ended how.
    """

    def __init__(self):
        self.ours = Framework("mpchain")
        arrays, self.failures, self.functions_of_chainer = ask_chainer()
        self.by_run = collections.defaultdict(dict)
        for name, array in arrays.items():
            run, result = name.rsplit("|", 1)
            self.by_run[run][result] = array
        self.counts = collections.Counter()

    def differences(self, case, dtype):
        """Runs mpchain; returns a line for each difference."""
        run = f"{case.name}|{dtype}"
        try:
            actual = self.ours.run(case, dtype)
        except Exception as error:
            return self.refusal(run, f"{type(error).__name__}: {error}")
        if run not in self.failures:
            exact = {} if dtype == "float64" else self.by_run.get(f"{case.name}|float64", {})
            return self.compare(case, dtype, actual, self.by_run[run], exact)
        if f"{case.name}|float32" in self.failures:
            self.counts["run here alone"] += 1
            return []
        self.counts["run here alone in this dtype"] += 1
        expected = self.by_run[f"{case.name}|float32"]
        tolerance = "float32" if dtype == "float64" else dtype
        like = {n: a.astype(actual[n].dtype) for n, a in expected.items() if n in actual}
        return self.compare(case, tolerance, actual, expected | like, expected)

    def compare(self, case, dtype, actual, expected, exact):
        """Compares all arrays of a run; returns a line for each difference."""
        lines = []
        for name in sorted(expected.keys() | actual.keys()):
            kind = "gradient" if name.startswith("g") else "forward"
            if {kind, f"{kind} {dtype}"} & set(case.wrong):
                self.counts[f"{kind} wrong in Chainer"] += 1
                continue
            ours, theirs = actual.get(name), expected.get(name)
            if "infinite" in case.wrong and theirs is not None:
                self.counts["infinite numbers of Chainer not compared"] += np.isinf(theirs).sum()
                ours = np.where(np.isinf(theirs), theirs, ours)
            line = self.difference(
                ours, theirs, exact.get(name), TOLERANCES[dtype] * case.loose, kind
            )
            if line:
                lines.append(f"{dtype} {name}: {line}")
        return lines

    def unexpected_refusals(self):
        """Returns errors of Chainer in float32 that no case expects."""
        runs = {f"{case.name}|float32" for case in CASES if "refuses" not in case.wrong}
        return [f"Chainer refuses {run}: {e}" for run, e in self.failures.items() if run in runs]

    def print_counts(self):
        for name, count in sorted(self.counts.items()):
            print(f"{count:6} {name}")

    def refusal(self, run, error):
        """Compares an error of mpchain: Chainer must have raised an error, too."""
        if run in self.failures:
            self.counts["refused by both"] += 1
            return []
        return [f"{run.rsplit('|', 1)[1]}: mpchain raises {error}"]

    def difference(self, actual, expected, exact, tolerance, kind):
        """Compares one array; returns the difference as text, or None.

        A result that is no farther from Chainer's float64 result than Chainer's own is also right.
        """
        if actual is None or expected is None:
            given = "Chainer" if actual is None else "mpchain"
            return f"only {given} gives it: {expected if actual is None else actual}"
        if kind_of(actual) != kind_of(expected) or actual.shape != expected.shape:
            return f"mpchain {actual.dtype}{actual.shape}, Chainer {expected.dtype}{expected.shape}"
        error = distance(actual, expected)
        if error <= tolerance:
            self.counts[f"{kind} equal"] += 1
            return None
        if exact is None:
            return f"off by {error:.1e}: mpchain {show(actual)}, Chainer {show(expected)}"
        ours, theirs = distance(actual, exact), distance(expected, exact)
        if ours <= theirs:
            self.counts[f"{kind} closer than Chainer to its float64"] += 1
            return None
        return (
            f"off by {error:.1e}, from float64 by {ours:.1e} (Chainer by {theirs:.1e}): "
            f"mpchain {show(actual)}, Chainer {show(expected)}"
        )


def distance(a, b):
    """Returns the largest difference over the largest finite number; inf and nan must agree.

    For dtypes other than floating-point ones, returns 1 if an element differs, and 0 otherwise.
    """
    if not a.size:
        return 0.0
    if a.dtype.kind != "f":
        return float(np.any(a != b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return np.inf
    if not finite.any():
        return 0.0
    return np.abs(a - b)[finite].max() / max(np.abs(b[finite]).max(), np.finfo(np.float64).tiny)


def kind_of(array):
    """Returns the dtype; all integer dtypes count as equal, because mpchain may choose the width of
    an index."""
    return "an integer" if array.dtype.kind in "iu" else array.dtype


def show(array):
    return np.array2string(array, precision=5, threshold=24).replace("\n", "")


def main(words):
    quiet()
    oracle = Oracle()
    cases = [c for c in CASES if not words or any(word in c.name for word in words)]
    for case in cases:
        if not oracle.ours.has(case):
            oracle.counts["missing"] += 1
            continue
        for dtype in case.dtypes:
            for line in oracle.differences(case, dtype):
                oracle.counts["DIFFERENT"] += 1
                print(f"{case.name} {line}")
    missing = sorted({case.function for case in cases if not oracle.ours.has(case)})
    print(f"missing: {', '.join(missing) or 'none'}")
    for function, note in sorted({(case.function, case.note) for case in cases if case.note}):
        print(f"Chainer's {function}: {note}")
    for line in oracle.unexpected_refusals():
        print(line)
    oracle.print_counts()
    return bool(oracle.counts["DIFFERENT"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["chainer"]:
        serve(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:]))
