"""Tests that every public link has a row in the tables, and that the checks find faults."""

import importlib
import pathlib

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain.link import Link
from mpchain.variable import Parameter
from tests.links.table import checks_of, row

# These models take seconds and hundreds of megabytes to make, so they have no rows;
# tests/links/model/test_vision.py tests them.
_VISION = {
    "GoogLeNet",
    "ResNet101Layers",
    "ResNet152Layers",
    "ResNet50Layers",
    "ResNetLayers",
    "VGG16Layers",
    "VGG19Layers",
    "VGGLayers",
}


def tables():
    """Yields all rows of the test files in this folder."""
    for path in sorted(pathlib.Path(__file__).parent.glob("test_*.py")):
        if path.stem != "test_table":
            yield from getattr(importlib.import_module(f"tests.links.{path.stem}"), "TABLE", ())


def test_every_public_link_has_a_row():
    kinds = {type(case.make()) for case in tables()}
    public = {n: v for n, v in vars(L).items() if isinstance(v, type) and issubclass(v, Link)}
    assert set(public) - {n for n, kind in public.items() if kind in kinds} - _VISION == set()


class _Right(Link):
    """Computes ``x * W + b``, and counts the calls."""

    def __init__(self, size=None):
        super().__init__()
        with self.init_scope():
            self.W = Parameter(fill_with_noise)
            self.b = Parameter(0)
        self.add_persistent("n", 0)
        self.dimmer = 1.0
        if size is not None:
            self.make(size)

    def make(self, size):
        self.W.initialize(size)
        self.b.initialize(size)

    def forward(self, x):
        if not self.W.is_initialized:
            self.make(x.shape[1])
        self.n += 1
        return x * self.W + self.b


def fill_with_noise(array):
    array[...] = np.random.randn(*array.shape)


class _FixedDtype(_Right):
    def make(self, size):
        self.W.array = np.ones(size, np.float32)
        self.b.initialize(size)


class _AnotherShape(_Right):
    def forward(self, x):
        if not self.W.is_initialized:
            self.make(1)
        return super().forward(x)


class _Forgetful(_Right):
    """A wrong link, which saves less than its state."""

    def serialize(self, serializer):
        self.W.array = serializer("W", self.W.array)


class _Sharing(_Right):
    def copy(self, mode="share"):
        return super().copy("share")


class _Unpicklable(_Right):
    def __init__(self, size=None):
        super().__init__(size)
        self.function = lambda x: x


class _WrongGradient(_Right):
    def forward(self, x):
        y = super().forward(x)
        return y + F.sum(self.W.array * self.b.array)


class _Detached(_Right):
    def forward(self, x):
        return x * self.W + self.b.array


class _Climbing(_Right):
    """A wrong link, whose gradients have the wrong sign."""

    def forward(self, x):
        y = super().forward(x)
        return 2 * y.array - y


class _WrongValue(_Right):
    def forward(self, x):
        return super().forward(x) + 1


class _Silent(_Right):
    def __repr__(self):
        return object.__repr__(self)


FAULTS = {
    _FixedDtype: {"test_parameters"},
    _AnotherShape: {"test_lazy"},
    _Forgetful: {"test_saving"},
    _Sharing: {"test_copies"},
    _Unpicklable: {"test_pickles"},
    _WrongGradient: {"test_derivatives"},
    _Detached: {"test_gradients_reach_parameters"},
    _Climbing: {"test_step"},
    _WrongValue: {"test_reference"},
    _Silent: {"test_repr"},
}


def _failures(kind, tmp_path):
    """Returns the names of the checks that a kind of link fails."""
    case = row(
        kind.__name__,
        lambda: kind(3),
        (2, 3),
        params={"W": (3,), "b": (3,)},
        persistents={"n": 0},
        lazy=kind,
        reference=lambda w, x: x * w["W"] + w["b"],
    )
    failed = set()
    for name, test in checks_of([case]).items():
        options = {"tmp_path": tmp_path} if name in ("test_lazy", "test_saving") else {}
        for mark in test.pytestmark:
            if mark.args[0] in ("dtype", "mode"):
                options[mark.args[0]] = mark.args[1][-1]
        device = {} if name == "test_repr" else {"device": "@numpy"}
        try:
            test(case, **device, **options)
        except Exception:  # any exception means that the check failed
            failed.add(name)
    return failed


def test_a_right_link_passes(tmp_path):
    assert _failures(_Right, tmp_path) == set()


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_a_wrong_link_does_not_pass(kind, tmp_path):
    assert _failures(kind, tmp_path) >= FAULTS[kind]


def test_rows_have_names_of_their_own():
    case = row("twice", _Right)
    with pytest.raises(AssertionError, match="names of rows are unique"):
        checks_of([case, case])
