"""Tests steps whose first arguments are equal, and values that decide what a step computes."""

import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.captured.comparison import are_all_close
from mpchain.captured.proof import Proof
from mpchain.captured.step import VARIES
from mpchain.iterators import SerialIterator
from mpchain.training.updaters import StandardUpdater
from tests.captured.helpers import arrays, check, same_first
from tests.captured.test_captured import language_model, truncated_step, values_of, words_of

WEIGHTS = np.array([0.2, 1.0, 5.0], "f")


def classifier(loss_of):
    def make():
        model = mpchain.Sequential(L.Linear(5, 7), F.relu, L.Linear(7, 3))
        optimizer = optimizers.Adam(0.05).setup(model)

        def step(x, t):
            loss = loss_of(model(x), t)
            model.cleargrads()
            loss.backward()
            optimizer.update()
            return loss

        return step, model

    return make


def weighted(y, t):
    return F.softmax_cross_entropy(y, t, class_weight=WEIGHTS)


def weighted_by_ones_own(y, t):
    hidden = np.asarray(t) + 0  # a plain array is not recorded, nor is anything computed from it
    return F.mean(F.softmax_cross_entropy(y, t, reduce="no") * WEIGHTS[hidden])


class TestArgumentsThatVaryLater:
    def test_the_step_is_compared_once_more(self):
        reasons = check(classifier(weighted), [same_first(i) for i in range(9)])
        assert reasons[3:] == [None, VARIES, *[None] * 4]

    @pytest.mark.parametrize("first", ["x", "t"])
    def test_one_after_the_other(self, first):
        def batch(i):
            late, early = arrays(max(i - 6, 0)), arrays(max(i - 3, 0))
            return (early[0], late[1]) if first == "x" else (late[0], early[1])

        reasons = check(classifier(weighted), [batch(i) for i in range(12)])
        assert [i for i, reason in enumerate(reasons) if reason == VARIES] == [4, 7]

    def test_what_hangs_on_them_by_other_means_is_refused(self):
        calls = [same_first(i) for i in range(9)]
        check(classifier(weighted_by_ones_own), calls, reason="means that are not recorded")

    def test_sorted_labels_of_an_updater(self):
        def trained(graph):
            np.random.seed(0)
            model = L.Classifier(
                L.Linear(5, 3),
                lambda y, t: F.softmax_cross_entropy(y, t, class_weight=WEIGHTS),
            )
            x = np.random.RandomState(0).randn(36, 5).astype("f")
            data = [*zip(x, np.repeat(np.arange(3, dtype="i"), 12))]
            optimizer = optimizers.SGD(0.3).setup(model)
            updater = StandardUpdater(
                SerialIterator(data, 3, shuffle=False), optimizer, graph=graph
            )
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for _ in range(24):
                    updater.update()
            return model, updater

        (model, _), (other, updater) = trained(False), trained(True)
        assert updater.captured.reason is None
        for name, value in values_of(model).items():
            np.testing.assert_allclose(values_of(other)[name], value, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("by", ["slices", "select_item", "sort", "diagonal", "permutate"])
    def test_policy_gradients_whose_first_rewards_are_zero(self, by):
        def loss_of(y, rewards):
            log_p = F.log_softmax(y)
            if by == "slices":
                chosen = log_p[:, :2]
            elif by == "select_item":
                chosen = F.select_item(log_p, (rewards > 0).astype("i"))[:, None]
            elif by == "sort":
                chosen = F.sort(log_p)[0][:, -1:]
            elif by == "diagonal":
                chosen = F.diagonal(log_p)[:, None]
                rewards = rewards[: chosen.shape[0]]
            else:
                chosen = F.permutate(log_p, np.arange(len(log_p))[::-1].astype("i"))
            return -F.mean(chosen * rewards[:, None])

        def batch(i):
            x, t = arrays(i)
            return x, (t * (0 if i < 5 else 1)).astype("f")

        check(classifier(loss_of), [batch(i) for i in range(10)], replayed=False)

    def test_parts_that_are_inactive_at_first(self):
        def loss_of(y, t):
            return F.mean(F.relu(y - 5) ** 2) + F.mean(y[:, 1:] ** 2)

        def batch(i):
            x, t = arrays(i)
            return x * (1 if i < 5 else 100), t

        calls = [batch(i) for i in range(10)]
        check(classifier(loss_of), calls, replayed=False, rtol=1e-4)

    def test_a_second_mismatch_ends_recording(self):
        hidden = {"x": 0.0}

        def step(x):
            hidden_now = float(np.asarray(x)[0])
            return x * 1 if hidden_now < 3 else x * 1 + np.zeros(1) * hidden["x"]

        step = mpchain.capture(step)
        with pytest.warns(UserWarning, match="one step, it|calls"):
            for i in range(6):
                step(np.full(1, float(i > 3) * 4))


class TestShapesThatDependOnData:
    """A call with other shapes runs eagerly, because guards check the shapes."""

    CASES = {
        "mask": lambda y, t: y[t > 0],
        "mask of columns": lambda y, t: y[:, (y[0] > 0)],
        "nonzero": lambda y, t: y[(t > 0).nonzero()[0]],
        "where": lambda y, t: y[np.where(t > 0)],
        "flatnonzero": lambda y, t: y[np.flatnonzero(t)],
        "argwhere": lambda y, t: np.argwhere(t) + y[0, 0],
        "compress": lambda y, t: np.compress(t > 0, y, axis=0),
        "compress of an array": lambda y, t: y.compress(t > 0, axis=0),
        "extract": lambda y, t: np.extract(y > 0, y),
        "unique": lambda y, t: np.unique(t) * y[0, 0],
        "unique counts": lambda y, t: np.unique(t, return_counts=True)[1] * y[0, 0],
        "bincount": lambda y, t: np.bincount(t) * y[0, 0],
        "repeat": lambda y, t: np.repeat(y, t, axis=0),
        "repeat of an array": lambda y, t: y.repeat(t, axis=0),
        "delete": lambda y, t: np.delete(y, np.flatnonzero(t), axis=0),
        "count": lambda y, t: y * len(np.unique(t)),
        "length": lambda y, t: y * len(np.flatnonzero(t)),
    }

    @pytest.mark.parametrize("name", CASES)
    @pytest.mark.parametrize("period", [4, 1])
    def test_they_are_right(self, name, period):
        """The number of labels changes in every fourth call, or in each call."""
        function = self.CASES[name]

        def batch(i):
            x, _ = arrays(i)
            n = 1 + (i // period) % 4
            return x, (np.arange(6) < n).astype("i") * (1 + n % 3)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="capture")
            calls = [batch(i) for i in range(14)]
            step = mpchain.capture(lambda x, t: function(x * 2, t))
            for x, t in calls:
                np.testing.assert_allclose(step(x, t), function(x * 2, t), rtol=1e-5)

    def test_losses_over_a_mask(self):
        def make():
            model = L.Linear(5, 3)
            return (lambda x, t: F.mean(model(x).array[t != 0] ** 2)), model

        def batch(i):
            return arrays(i)[0], (np.arange(6) < (2 if i in (7, 8) else 4)).astype("i")

        reasons = check(make, [batch(i) for i in range(12)])
        assert [i for i, reason in enumerate(reasons) if reason is not None] == [0, 1, 2, 7, 8]

    def test_after_an_update_they_are_refused(self):
        def make():
            model = L.Linear(5, 3)
            optimizer = optimizers.SGD(0.1).setup(model)

            def step(x, t):
                optimizer.update(lambda: F.sum(model(x) ** 2))
                return model(x).array[t > 0]

            return step, model

        calls = [(arrays(i)[0], np.array([1, 0, 1, 0, 0, 0])) for i in range(6)]
        check(make, calls, reason="depends on data after an optimizer's update")

    def test_guards_that_differ_in_each_call_end_recording(self):
        step = mpchain.capture(lambda x: x[x > 0].sum())
        x = np.array([1.0, 2.0, -1.0])
        for _ in range(4):
            step(x)
        with pytest.warns(UserWarning, match="has changed, in 32 calls in a row"):
            for _ in range(40):
                assert step(np.abs(x)) == 4


class TestIndices:
    def test_parts_that_are_chosen_by_data_are_refused(self):
        step = mpchain.capture(lambda x, i: np.split(x, i)[1] + 0)
        with pytest.warns(UserWarning, match="split chooses a part of an array by data"):
            for i in range(5):
                assert len(step(np.arange(8), np.array([2 + i, 7]))) == 5 - i

    def test_rows_that_are_chosen_by_data(self):
        step = mpchain.capture(lambda x, i: x[i] + 0)
        for i in range(5):
            assert step(np.arange(10).reshape(5, 2), np.array(i)).tolist() == [2 * i, 2 * i + 1]
        assert step.reason is None

    def test_parts_of_a_split_may_be_written(self):
        def step(x, t):
            y = x + 0
            first, _ = np.split(y, 2)
            first *= 3
            return y

        check(lambda: (step,))

    def test_results_with_names(self):
        def step(x, t):
            found = np.linalg.eigh(x.T @ x)
            return found.eigenvalues, np.abs(found.eigenvectors)

        check(lambda: (step,), rtol=1e-3)

    def test_elements_by_flat_are_refused(self):
        step = mpchain.capture(lambda x: x * x.flat[0])
        with pytest.warns(UserWarning, match="goes through the elements"):
            for i in range(4):
                assert step(np.full(2, i)).sum() == 2 * i**2


class TestFailures:
    """A step that fails while it is recorded leaves the same state as without recording."""

    # The step fails while it is recorded, compared, or replayed.
    @pytest.mark.parametrize("when", [1, 2, 4])
    def test_they_leave_the_same(self, when):
        def trained(captured):
            np.random.seed(0)
            model = L.Linear(5, 3)
            model.mean = np.zeros(5, "f")
            model.register_persistent("mean")
            optimizer = optimizers.SGD(0.1).setup(model)
            total = np.zeros(3, "f")

            def step(x, t):
                model.mean = model.mean + x.mean(axis=0)
                loss = F.sum(model(x))
                total[0] += loss.array
                model.cleargrads()
                loss.backward()
                # The loss raises an error for labels that do not exist.
                F.softmax_cross_entropy(model(x), t)
                optimizer.update()

            step = mpchain.capture(step) if captured else step
            for i in range(7):
                x, t = arrays(i)
                if i == when:
                    with pytest.raises(ValueError, match="softmax_cross_entropy"):
                        step(x, t + 5)
                    assert type(model.W.grad) is type(model.mean) is type(total) is np.ndarray
                    kept = [x.copy() for x in (model.W.grad, model.mean, total)]
                else:
                    step(x, t)
            return [*kept, model.W.array, model.mean, total], step

        (expected, _), (found, step) = trained(False), trained(True)
        for a, b in zip(expected, found):
            np.testing.assert_allclose(b, a, rtol=1e-5)
        assert step.reason is None


def test_state_whose_graph_is_not_cut_has_all_its_gradients():
    models = []
    for captured in (False, True):
        model = language_model()
        step = truncated_step(model, optimizers.SGD(1.0).setup(model), unchains=False)
        step = mpchain.capture(step) if captured else step
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="capture")
            for i in range(5):
                step(words_of(i))
        models.append(model)
    for name, value in values_of(models[0]).items():
        np.testing.assert_allclose(values_of(models[1])[name], value, rtol=1e-5, atol=1e-6)


def test_gradients_that_are_rounding_errors_are_compared_with_the_others():
    noise = [np.array([3e-7, -2e-7], "f"), np.array([-1e-7, 4e-7], "f")]
    assert not are_all_close(noise[:1], noise[1:])
    assert are_all_close(noise[:1], noise[1:], scale=1.0)
    assert not are_all_close(noise[:1], noise[1:], scale=1e-3)
    proof = Proof([], [])
    proof.note(np.full(2, 100.0))  # a draw
    proof.note(np.full(2, 100.0), np.full(2, 100.0))  # an exchange
    for grad in (noise[0], None, np.full(3, -0.5), np.array([np.inf])):
        proof.note((), [grad])
    assert proof.size_of_grads() == 0.5


def test_a_result_that_depends_on_the_rounding_of_a_product_is_replayed():
    random = np.random.RandomState(0)
    x, W = random.randn(50, 300).astype("f"), random.randn(300, 200).astype("f")
    rounded = x @ W
    step = mpchain.capture(lambda x: np.sign(x.dot(W) - rounded))
    found = [step(x) for _ in range(5)]
    assert step.reason is None
    np.testing.assert_array_equal(found[-1], found[-2])
