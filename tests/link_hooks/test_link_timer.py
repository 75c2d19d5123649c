"""Tests TimerHook of links."""

import io

import numpy as np
import pytest

import mpchain
import mpchain.links as L
from mpchain.link_hooks import TimerHook


class Tree(mpchain.Chain):
    """A link that calls itself."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.leaf = L.Linear(3, 3)

    def forward(self, x, depth):
        return self.leaf(x) if depth == 0 else self(x, depth - 1)


@pytest.fixture
def x():
    return np.ones((2, 3), np.float32)


def test_calls_are_counted_by_class(x, device):
    model = mpchain.Sequential(L.Linear(3, 4), L.Linear(4, 2)).to_device(device)
    with TimerHook() as hook:
        model(model.device.send(x))
    assert [name for name, _ in hook.call_history] == ["Linear", "Linear", "Sequential"]
    times = [seconds for _, seconds in hook.call_history]
    assert times[2] >= times[0] + times[1] > 0
    assert hook.total_time() == pytest.approx(sum(times))
    assert hook.summary()["Linear"]["occurrence"] == 2


def test_a_link_that_calls_itself(x):
    with TimerHook() as hook:
        Tree()(x, 2)
    names, times = zip(*hook.call_history)
    assert names == ("Linear", "Tree", "Tree", "Tree")
    assert times == tuple(sorted(times))


def test_one_link(x):
    hook, layer = TimerHook(), L.Linear(3, 4)
    layer.add_hook(hook)
    layer(x)
    L.Linear(3, 4)(x)
    assert len(hook.call_history) == 1


def test_report():
    hook = TimerHook()
    hook.call_history = [("Linear", 0.25), ("Linear", 0.5), ("Chain", 1.0)]
    out = io.StringIO()
    hook.print_report("ms", out)
    assert out.getvalue().splitlines() == [
        "LinkName  ElapsedTime  Occurrence",
        "  Linear     750.00ms           2",
        "   Chain    1000.00ms           1",
    ]
