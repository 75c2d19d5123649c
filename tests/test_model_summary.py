"""Tests mpchain.summary, the table of a model's links."""

import re

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import config
from mpchain.profiling.model_summary import _size


class Net(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = mpchain.Sequential(L.Linear(None, 4), F.relu, L.Linear(4, 4))
            self.twice = L.Linear(4, 4, nobias=True)
            self.unused = L.Linear(None, 9, nobias=True)

    def forward(self, x, scale=1):
        self.modes = config.train, config.enable_backprop
        h = self.twice(self.twice(self.first(x))) * scale
        return {"h": h, "both": (h, h.array.sum())}


def test_rows():
    model = Net()
    table = mpchain.summary(model, np.ones((5, 3), np.float32), scale=2)
    assert model.modes == (False, False)
    assert [(row.path, row.name, row.depth, row.shapes, row.n_params) for row in table.rows] == [
        ("/", "Net", 0, [(5, 4), (5, 4), ()], 52),
        ("/first", "Sequential", 1, [(5, 4)], 36),
        ("/first/0", "Linear", 2, [(5, 4)], 16),
        ("/first/2", "Linear", 2, [(5, 4)], 20),
        ("/twice", "Linear", 1, [(5, 4)], 16),
        ("/twice", "Linear", 1, [(5, 4)], 16),
    ]
    assert [row.n_bytes for row in table.rows] == [164, 80, 80, 80, 80, 80]
    assert table.output_bytes == 4 * 80
    assert (table.n_params, table.n_params_updated, table.param_bytes) == (52, 52, 208)
    assert table.rows[0].seconds >= table.rows[1].seconds > 0


def test_text():
    model = Net()
    model(np.ones((5, 3), np.float32))
    model.first.disable_update()
    text = str(mpchain.summary(model, np.ones((5, 3), np.float32)))
    lines = [line.split() for line in re.sub(r"\d+\.\d\d ms", "T", text).splitlines()]
    assert lines[0] == ["link", "class", "output", "parameters", "output", "size", "time"]
    assert lines[2] == ["first", "Sequential", "(5,", "4)", "36", "80", "B", "T"]
    assert (
        text.splitlines()[-1] == "52 parameters (208 B), 36 of them not updated, 320 B of outputs"
    )
    assert len(set(map(len, text.splitlines()[:-1]))) == 1  # columns are aligned


def test_a_model_that_is_one_link_and_a_link_that_is_no_child():
    other = L.Linear(2, 2)
    assert [row.path for row in mpchain.summary(other, np.ones((1, 2), "f")).rows] == ["/"]
    model = mpchain.Sequential(lambda x: other(x))
    rows = mpchain.summary(model, np.ones((1, 2), "f")).rows
    assert [(row.path, row.n_params) for row in rows] == [("/", 0), ("?", 6)]


def test_statistics_are_as_before():
    model = L.BatchNormalization(3)
    mpchain.summary(model, np.arange(6, dtype="f").reshape(2, 3))
    assert np.array_equal(model.avg_mean, np.zeros(3))


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 49, "1536.0 TiB"),
    ],
)
def test_sizes(n, text):
    assert _size(n) == text


def test_links_of_a_sequential_have_the_places_of_its_layers():
    """The summary shows positions of layers, whereas names in files count links only, as in
    Chainer."""
    model = mpchain.Sequential(*[layer for _ in range(4) for layer in (L.Linear(3, 3), F.relu)])
    rows = mpchain.summary(model, np.zeros((2, 3), np.float32)).rows
    assert [row.path for row in rows] == ["/", "/0", "/2", "/4", "/6"]
    assert [path for path, _ in model.namedlinks() if path != "/"] == ["/0", "/1", "/2", "/3"]
    assert [link for _, link in model.shownlinks()][1:] == [model[i] for i in (0, 2, 4, 6)]
