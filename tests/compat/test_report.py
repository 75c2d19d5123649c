"""Tests the findings of ``python -m mpchain.compat report``."""

import subprocess
import sys

import pytest

from mpchain.compat import report

PROGRAM = """\
import chainer
import chainer.functions as F
from chainer import links as L, nonsense
from chainer.training.updaters import StandardUpdater
from chainer.functions.activation.relu import ReLUGrad2

class Model(chainer.Chain):
    def __init__(self):
        self.l = L.Linear(3, 4)
        self.m = L.Unheard(3)

    def forward(self, x):
        x.attribute_of_an_object
        return F.unheard(F.relu(self.l(x))) + chainer.as_variable(x)
"""
ATTRIBUTES = """\
import chainer
from chainer import links as L
from chainer.training import extensions
from chainer.training.extensions import LogReport

class Report(extensions.LogReport):
    def __call__(self, trainer):
        self._own = self._keys
        return self._unheard, self._own, self._trigger, self.public

class Layer(L.Linear):
    def forward(self, x):
        self._initialize_params(3)
        self._further = self._params, self._neither
        return float(x.array), int(self.W.data), float(x.array.sum()), float(x.grad), float(x)

class Other:
    def __call__(self):
        return self._unheard
"""
MISSING = [
    (3, "chainer.nonsense"),
    (5, "chainer.functions.activation.relu.ReLUGrad2"),
    (10, "chainer.links.Unheard"),
    (14, "chainer.functions.unheard"),
]


def test_missing_names(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    assert report.missing(path) == [(str(path), line, name) for line, name in MISSING]
    assert report.missing(tmp_path) == report.missing(path)


def test_attributes_and_numbers(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(ATTRIBUTES)
    missing = [(line, name) for _, line, name in report.missing(path)]
    assert missing == [(9, "LogReport._unheard"), (14, "Linear._neither")]
    found = [(line, expression) for _, line, expression in report.doubtful(path)]
    assert found == [(15, text) for text in ("float(x.array)", "int(self.W.data)", "float(x.grad)")]


PROPERTIES = """\
from chainer.functions.evaluation import accuracy
from chainer.training.extensions import util

class Model:
    accuracy = property(lambda self: self._accuracy)

    @accuracy.setter
    def accuracy(self, value):
        self._accuracy = value

    @accuracy.deleter
    def accuracy(self):
        util.erase_console(0, 0)
        accuracy.unheard
"""


def test_properties_that_have_the_name_of_a_module(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROPERTIES)
    assert report.missing(path) == [
        (str(path), 14, "chainer.functions.evaluation.accuracy.unheard")
    ]


@pytest.mark.slow
def test_the_command(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "mpchain.compat", "report", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1
    lines = [f"{path}:{line}: {name}" for line, name in MISSING]
    assert run.stdout.splitlines() == [*lines, "names that are missing: 4"]


def test_a_file_that_is_not_python_3(tmp_path):
    path = tmp_path / "old.py"
    path.write_text("print 'hello'\n")
    [(file, line, message)] = report.missing(path)
    assert (file, line) == (str(path), 1) and message.startswith("cannot be read")
