"""Tests that observers see their thread's work while they are active, and that nothing else
changes."""

import threading
import weakref

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import kernels, observers, optimizers
from mpchain.observers import Observer, Recording, current, observed, span

X = np.ones((4, 3), np.float32)


class Noting(Observer):
    def __init__(self, *kinds):
        self.kinds, self.seen = kinds, []

    def begins(self, span):
        if span.kind in self.kinds:
            self.seen.append((span.kind, span.name, "begins"))

    def ends(self, span, begun):
        if span.kind in self.kinds:
            self.seen.append((span.kind, span.name, "failed" if span.has_failed else "ends"))


class Doubling:
    @observed("input", "converter")
    def __call__(self, x):
        return 2 * x


def test_spans_nest_and_end_in_reverse():
    optimizer = optimizers.SGD().setup(L.Linear(3, 2))
    kinds = "link", "call", "forward", "backward", "optimizer"
    with Noting(*kinds) as outer, Noting(*kinds) as inner:
        optimizer.update(lambda: F.sum(optimizer.target(X)))
    assert outer.seen == inner.seen
    assert [name for _, name, what in outer.seen if what == "begins"] == [
        *("optimizer", "forward", "Linear", "linear", "backward")
    ]
    assert [name for _, name, what in outer.seen if what == "ends"] == [
        *("linear", "Linear", "forward", "backward", "optimizer")
    ]


def test_spans_end_by_exceptions():
    with Noting("link", "call") as observer, pytest.raises(mpchain.utils.type_check.InvalidType):
        L.Linear(3, 2)(np.ones((4, 8), np.float32))
    assert [what for *_, what in observer.seen] == ["begins", "begins", "failed", "failed"]


def test_what_functions_compute_is_seen():
    class Results(Observer):
        seen = []

        def computed(self, function, outputs):
            self.seen.append((function.label, *outputs))

    with Results():
        total, (parts, _) = F.sum(X), F.split_axis(X, 2, 0)
    assert [label for label, *_ in Results.seen] == ["sum", "split"]
    assert Results.seen[0][1] is total.array and Results.seen[1][1] is parts.array
    assert F.exp(X) is not None and len(Results.seen) == 2  # no observer is active


@pytest.mark.parametrize("of_ranks", [False, True])
def test_parts_of_a_batch_are_replaced(of_ranks):
    class Other(Observer):
        def parts(self, optimizer, parts):
            ((n, function),) = parts
            return [(n, lambda: 3 * function())]

    optimizer = optimizers.SGD(lr=1)
    if of_ranks:
        comm = mpchain.create_communicator()
        optimizer = mpchain.create_multi_node_optimizer(optimizer, comm)
    model = L.Linear(3, 1, initialW=0, nobias=True)
    optimizer.setup(model)
    with Other():
        optimizer.update(lambda x: F.mean(model(x)), X)
    assert model.W.array.tolist() == [[-3, -3, -3]]


def test_results_are_seen_and_not_kept():
    results = []

    class Results(Observer):
        def ends(self, span, begun):
            results.append((span.args, span.result))

    with Results():
        assert Doubling()(3) == 6
    assert results == [((3,), 6)]
    with span("bucket", "bucket 0") as seen:
        seen.result = array = np.zeros(1)
    array, there = None, weakref.ref(array)
    assert there() is None


def test_other_threads_are_not_observed():
    with Noting("input") as observer:
        thread = threading.Thread(target=Doubling(), args=(1,))
        thread.start()
        thread.join(60)
    assert not thread.is_alive() and observer.seen == []


def test_observers_may_leave_in_any_order():
    first, second = Noting("input"), Noting("input")
    first.__enter__()
    second.__enter__()
    first.__exit__()
    Doubling()(1)
    assert current.observers == (second,) and len(second.seen) == 2 and not first.seen
    second.__exit__()
    assert current.observers is None and not mpchain.get_function_hooks()


def test_operations_are_seen():
    """A maintainer would count operations in this way."""

    class Counting(Observer):
        sees_functions = False
        sees_operations = True
        n = 0

        def operation(self, operation, args):
            self.n += operation.name == "linear"

    with Counting() as observer:
        y = kernels.linear(X, X[:2], None)
    np.testing.assert_array_equal(y, X @ X[:2].T)
    assert observer.n == 1


def test_a_recording_answers_and_can_be_left_out():
    class Ones(Recording):
        def __init__(self):
            self.reasons = []

        def compute(self, operation, args):
            return "computed"

        def one_call(self, function, args):
            return "called"

        def refuse(self, reason):
            self.reasons.append(reason)

    with Noting("input") as other, Ones() as recording:
        assert kernels.linear(X, X[:2], None) == "computed"
        assert observers.one_call(np.negative, X) == "called"
        observers.refuse("it does")
        with observers.unrecorded():
            assert current.observers == (other,) and current.recorder is None
            assert observers.one_call(np.negative, X[0, 0]) == -1
        assert current.recorder is recording
    assert recording.reasons == ["it does"] and current.recorder is None
