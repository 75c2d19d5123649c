"""Compares every link of Chainer 7.8.1 with mpchain's.

``python -m tests.oracle.links [WORD ...]`` compares the cases whose name contains one of the words
(without words, all cases) and prints the differences. The environment variable
MPCHAIN_TEST_CHAINER_PYTHON names the interpreter of Chainer's environment; there, this file runs as
``python -m tests.oracle.links chainer FOLDER`` and writes its results into the folder.
"""

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
import zlib

import numpy as np

from tests.oracle.link_cases import CASES

VARIABLE = "MPCHAIN_TEST_CHAINER_PYTHON"
MEMORY = 6 * 10**9
TIMEOUT = 200  # the time limit in seconds
TOLERANCE = 2e-6


class Framework:
    """mpchain or Chainer, with the methods that run cases."""

    def __init__(self, name):
        self.module = importlib.import_module(name)
        self.links = importlib.import_module(f"{name}.links")
        self.functions = importlib.import_module(f"{name}.functions")
        self.serializers = importlib.import_module(f"{name}.serializers")

    def names(self):
        """Returns the names of the framework's links."""
        link = self.module.Link
        return [n for n, v in vars(self.links).items() if is_kind_of(v, link)]

    def has(self, case):
        return hasattr(self.links, case.make.removeprefix("L.").partition("(")[0])

    def run(self, case, file, other_file=None):
        """Makes the link, calls it and saves it; returns arrays by name.

        These are parameters and persistent values when it is made ("initial W") and after the call
        ("after avg_mean"), outputs ("y0") and gradients ("gx", "gW"). With ``other_file``, which
        the other side has saved, they are also the outputs of a new link that the file is loaded
        into ("loaded y0").
        """
        link, inputs = self.made(case), case.draw()
        found = {f"initial {n}": np.array(v) for n, v in self.values(link) if v is not None}
        scope = {name: self.given(array) for name, array in inputs.items()}
        if any(not p.is_initialized for p in link.params()):
            self.call(case, link, scope)
            made = {path[1:]: p.array for path, p in link.namedparams()}
            found |= {f"initial {n}": np.array(v) for n, v in made.items()}
            link, other = self.made(case), link
            link.copyparams(other)
        self.change_parameters(link)
        outputs = self.call(case, link, scope)
        found |= {f"y{i}": np.asarray(array_of(y)) for i, y in enumerate(outputs)}
        found |= self.gradients(link, outputs, scope)
        found |= {f"after {n}": np.array(v) for n, v in self.values(link) if v is not None}
        self.serializers.save_npz(file, link)
        if other_file is not None:
            link = self.made(case)
            self.serializers.load_npz(other_file, link)
            outputs = self.call(case, link, scope)
            found |= {f"loaded y{i}": np.asarray(array_of(y)) for i, y in enumerate(outputs)}
        return found

    def made(self, case):
        np.random.seed(0)
        return eval(case.make, {"L": self.links, "F": self.functions, "np": np})

    def given(self, array):
        return self.module.Variable(array) if array.dtype.kind == "f" else array

    def values(self, link):
        """Yields parameters and persistent values by path."""
        for path, below in link.namedlinks():
            path = path.lstrip("/") and f"{path[1:]}/"
            for name in below._params:
                yield path + name, getattr(below, name).array
            for name in below._persistent if "_persistent" in vars(below) else below._persistents:
                yield path + name, getattr(below, name)

    def change_parameters(self, link):
        """Sets the parameters to numbers that are the same on both sides, so that none is zero."""
        for path, param in link.namedparams():
            random = np.random.RandomState(zlib.crc32(path.encode()))
            noise = random.uniform(-0.5, 0.5, param.shape)
            initial = np.arange(param.array.size).reshape(param.shape) % 5 * 0.1
            param.array[...] = initial + noise

    def call(self, case, link, scope):
        np.random.seed(1)
        with contextlib.ExitStack() as stack:
            for name, value in case.config.items():
                stack.enter_context(self.module.using_config(name, value))
            scope = {**scope, "link": link, "F": self.functions, "np": np}
            return list(flatten(eval(case.call, scope)))

    def gradients(self, link, outputs, scope):
        """Returns gradients of parameters and inputs, for the same gradients of the outputs."""
        link.cleargrads()
        variable = self.module.Variable
        ys = [y for y in outputs if isinstance(y, variable) and y.requires_grad]
        random = np.random.RandomState(2)
        for y in ys:
            y.grad = np.asarray(random.randn(*y.shape), y.dtype)
        if ys:
            self.module.backward(ys)
        places = {n: x for n, x in scope.items() if isinstance(x, variable)}
        places |= {path[1:]: p for path, p in link.namedparams()}
        found = {f"g{n}": x.grad for n, x in places.items() if x.grad is not None}
        for x in places.values():
            x.cleargrad()
        return found

    def results(self, cases, folder, other_folder=None):
        """Runs the cases; returns (arrays, failures), by number."""
        arrays, failures = {}, {}
        for i, case in enumerate(cases):
            if not self.has(case):
                continue
            other_file = other_folder and other_folder / f"{i}.npz"
            other_file = other_file if other_file and other_file.exists() else None
            try:
                arrays[i] = self.run(case, folder / f"{i}.npz", other_file)
            except Exception as error:  # the report contains any error
                failures[i] = f"{type(error).__name__}: {error}"
        return arrays, failures


def is_kind_of(value, kind):
    return isinstance(value, type) and issubclass(value, kind)


def flatten(result):
    """Yields the outputs in nested tuples and lists."""
    if isinstance(result, (tuple, list)):
        for item in result:
            yield from flatten(item)
    elif result is not None:
        yield result


def array_of(y):
    return getattr(y, "array", y)


def serve(folder):
    """Runs all cases in the process in Chainer's environment."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    folder, chainer = pathlib.Path(folder), Framework("chainer")
    arrays, failures = chainer.results(CASES, folder / "theirs", folder / "ours")
    for i, found in arrays.items():
        np.savez(folder / f"{i}.npz", **{name.replace("/", "|"): a for name, a in found.items()})
    (folder / "said.json").write_text(json.dumps([failures, chainer.names()]))


class Oracle:
    """Chainer's results, and the comparison of mpchain's results with them.

    Attributes:
        links_of_chainer: the names of its links.
        counts: how many arrays were compared.
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.mpchain = Framework("mpchain")
        (self.folder / "ours").mkdir()
        (self.folder / "theirs").mkdir()
        self.mpchain.results(CASES, self.folder / "ours")
        self.ask_chainer()
        failures, self.links_of_chainer = json.loads((self.folder / "said.json").read_text())
        self.failures = {int(i): text for i, text in failures.items()}
        self.counts = 0

    def ask_chainer(self):
        root = str(pathlib.Path(__file__).parents[2])
        command = [os.environ[VARIABLE], "-m", "tests.oracle.links", "chainer", str(self.folder)]
        environment = os.environ | {"PYTHONPATH": root}
        process = subprocess.Popen(command, cwd=root, env=environment, start_new_session=True)
        try:
            status = process.wait(TIMEOUT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if status:
            raise RuntimeError(f"Chainer's process ended with status {status}")

    def differences(self, case):
        """Runs mpchain; returns a line for each difference."""
        if "all" in case.wrong:
            return []
        i = next(i for i, other in enumerate(CASES) if other is case)
        if i in self.failures:
            return [f"Chainer raises {self.failures[i]}"]
        theirs = self.folder / "theirs" / f"{i}.npz"
        actual = self.mpchain.run(case, self.folder / "ours" / f"{i}.npz", theirs)
        with np.load(self.folder / f"{i}.npz") as file:
            expected = {name.replace("|", "/"): array for name, array in file.items()}
        lines = self.differences_of_files(i, case.wrong)
        for name in sorted((expected.keys() | actual.keys()) - set(case.wrong)):
            line = difference(name, actual.get(name), expected.get(name), TOLERANCE * case.loose)
            self.counts += 1
            lines += [f"{name}: {line}"] if line else []
        return lines

    def differences_of_files(self, i, wrong):
        """Compares the names, shapes and dtypes of the arrays that each side has saved."""
        ours, theirs = (self.contents(whose, i) for whose in ("ours", "theirs"))
        pairs = [(f"saved {n}", ours.get(n), theirs.get(n)) for n in ours.keys() | theirs.keys()]
        return [f"{n}: mpchain {a}, Chainer {b}" for n, a, b in pairs if a != b and n not in wrong]

    def contents(self, whose, i):
        with np.load(self.folder / whose / f"{i}.npz") as file:
            return {name: (array.shape, array.dtype.str) for name, array in file.items()}


def difference(name, actual, expected, tolerance):
    """Compares one array; returns the difference as text, or None."""
    if actual is None or expected is None:
        return f"only {'Chainer' if actual is None else 'mpchain'} gives it"
    kinds = [a.dtype if a.dtype.kind == "f" else a.dtype.kind for a in (actual, expected)]
    if kinds[0] != kinds[1] or actual.shape != expected.shape:
        return f"mpchain {actual.dtype}{actual.shape}, Chainer {expected.dtype}{expected.shape}"
    if name.startswith("initial") and len(np.unique(expected)) > 3:
        return difference_of_distributions(actual, expected)
    error = np.abs(actual - expected).max(initial=0)
    if error <= tolerance * np.abs(expected).max(initial=1):
        return None
    return f"off by {error:.1e}: mpchain {show(actual)}, Chainer {show(expected)}"


def difference_of_distributions(actual, expected):
    """Compares initial values; if they differ, their root mean squares must be similar."""
    if np.array_equal(actual, expected):
        return None
    mine, theirs = np.sqrt(np.mean(actual**2)), np.sqrt(np.mean(expected**2))
    if abs(np.log(mine / theirs)) < 4 / np.sqrt(actual.size):
        return None
    return f"mpchain's root mean square is {mine:.3f}, Chainer's {theirs:.3f}"


def show(array):
    return np.array2string(array, precision=5, threshold=24).replace("\n", "")


def main(words):
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        oracle = Oracle(folder)
        for case in CASES:
            if words and not any(word in case.name for word in words):
                continue
            lines = oracle.differences(case) if oracle.mpchain.has(case) else ["missing"]
            print("".join(f"{case.name} {line}\n" for line in lines), end="")
        print(f"{oracle.counts} arrays compared")


if __name__ == "__main__":
    if sys.argv[1:2] == ["chainer"]:
        serve(sys.argv[2])
    else:
        main(sys.argv[1:])
