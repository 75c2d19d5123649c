import contextlib
import copy
import re
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import training
from mpchain.configuration import config
from mpchain.datasets import TupleDataset
from mpchain.iterators import SerialIterator
from mpchain.training import extensions

RNG = np.random.default_rng(1)
X = RNG.normal(size=(25, 4))
T = RNG.integers(3, size=25).astype(np.int32)


def make_model():
    weights = np.random.default_rng(2).normal(size=(3, 4))
    with mpchain.using_config("dtype", np.float64):
        return L.Classifier(L.Linear(4, 3, initialW=weights, initial_bias=np.zeros(3)))


def make_iterator(batch_size=10):
    return SerialIterator(TupleDataset(X, T), batch_size, repeat=False, shuffle=False)


def loss_and_accuracy(model):
    """Returns the expected loss and accuracy, by a plain loop over samples."""
    W = model.predictor.W.array
    losses, hits = [], []
    for x, t in zip(X, T, strict=True):
        y = W @ x
        losses.append(np.log(np.exp(y).sum()) - y[t])
        hits.append(y.argmax() == t)
    return np.mean(losses), np.mean(hits)


@pytest.mark.parametrize("batch_size", [1, 10, 24, 25, 40])
def test_means_are_over_samples(batch_size):
    model = make_model()
    result = extensions.Evaluator(make_iterator(batch_size), model)()
    loss, accuracy = loss_and_accuracy(model)
    assert result.keys() == {"main/loss", "main/accuracy"}
    # The tolerance of the accuracy is 1e-6, because it may be a float32.
    np.testing.assert_allclose(float(result["main/loss"]), loss, rtol=1e-12)
    np.testing.assert_allclose(float(result["main/accuracy"]), accuracy, rtol=1e-6)


def test_evaluation_repeats():
    evaluator = extensions.Evaluator(make_iterator(), make_model())
    assert evaluator() == evaluator()


def test_own_weights_are_kept():
    values = iter([(1.0, 3), (2.0, 1), (5.0, 0)])
    evaluator = extensions.Evaluator(
        make_iterator(), make_model(), eval_func=lambda x, t: mpchain.report({"v": next(values)})
    )
    assert evaluator() == {"v": pytest.approx(5 / 4)}


def test_values_that_some_batches_lack():
    def report_even(x, t):
        if len(x) == 5:
            mpchain.report({"last": 7.0})
        mpchain.report({"size": float(len(x))})

    evaluator = extensions.Evaluator(make_iterator(), make_model(), eval_func=report_even)
    assert evaluator() == {"last": 7.0, "size": pytest.approx((10 * 10 + 10 * 10 + 5 * 5) / 25)}


def test_summary_can_be_merged_before_the_mean():
    model = make_model()

    class Gathering(extensions.Evaluator):
        def evaluate(self):
            return self.summarize()

    summary = Gathering(make_iterator(), model)()
    np.testing.assert_allclose(
        float(summary.compute_mean()["main/loss"]), loss_and_accuracy(model)[0], rtol=1e-12
    )


def test_mode_of_the_model():
    seen = []

    def record(x, t):
        y = F.sum(model.predictor(x))
        seen.append((config.train, config.enable_backprop, y.creator_node is None))

    model = make_model()
    extensions.Evaluator(make_iterator(), model, eval_func=record)()
    assert seen == [(False, False, True)] * 3
    assert config.train
    assert config.enable_backprop


def test_in_a_trainer_values_have_the_name_as_prefix(make_trainer):
    seen = []
    model = make_model()
    trainer = make_trainer((1, "epoch"))
    trainer.extend(extensions.Evaluator(make_iterator(), model))
    trainer.extend(extensions.Evaluator(make_iterator(), {"main": model}), name="test")
    trainer.extend(lambda trainer: seen.append(set(trainer.observation)), "seen")
    trainer.run()
    assert seen == [
        set(),
        set(),
        {
            "validation/main/loss",
            "validation/main/accuracy",
            "test/main/loss",
            "test/main/accuracy",
        },
    ]


def test_hook_and_parts():
    hooked = []
    model, iterator = make_model(), make_iterator()
    evaluator = extensions.Evaluator(iterator, model, eval_hook=hooked.append)
    evaluator()
    assert hooked == [evaluator]
    assert evaluator.get_iterator("main") is iterator
    assert evaluator.get_target("main") is model
    assert evaluator.get_all_iterators() == {"main": iterator}
    assert evaluator.get_all_targets() == {"main": model}
    assert (evaluator.trigger, evaluator.priority) == ((1, "epoch"), training.PRIORITY_WRITER)


def test_converter_and_device():
    seen = []

    def converter(batch, device):
        seen.append((len(batch), device))
        return {"x": np.stack([x for x, _ in batch]), "t": np.array([t for _, t in batch])}

    model = make_model()
    evaluator = extensions.Evaluator(
        make_iterator(), model, converter, device=-1, eval_func=lambda t, x: model(x, t)
    )
    assert evaluator()["main/loss"] == extensions.Evaluator(make_iterator(), model)()["main/loss"]
    cpu = mpchain.get_device("@numpy")
    assert evaluator.device == cpu
    assert seen == [(10, cpu), (10, cpu), (5, cpu)]


class OnceOnly:
    """An iterator without reset, as users write it."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == 20:
            raise StopIteration
        self.position += 5
        return [(x, t) for x, t in zip(X[:5], T[:5], strict=True)]


def test_iterator_without_reset():
    iterator = OnceOnly()
    evaluator = extensions.Evaluator(iterator, make_model())
    assert evaluator() == evaluator()
    assert copy.copy(iterator).position == 0


def test_no_samples():
    iterator = OnceOnly()
    iterator.position = 20
    assert extensions.Evaluator(iterator, make_model())() == {}


def test_empty_batches_are_left_out():
    class WithEmptyBatches(OnceOnly):
        def __next__(self):
            batch = super().__next__()
            return [] if self.position == 10 else batch

    model = make_model()
    assert (
        extensions.Evaluator(WithEmptyBatches(), model)()
        == extensions.Evaluator(OnceOnly(), model)()
    )


def test_progress_bar_on_a_terminal(open_terminal):
    pytest.importorskip("tqdm")
    terminal = open_terminal()
    with contextlib.redirect_stdout(terminal):
        extensions.Evaluator(make_iterator(), make_model(), progress_bar=True)()
    shown = terminal.getvalue()
    assert "validation: 10 samples" in shown
    assert "100% |" in shown


def test_progress_bar_without_a_terminal(capsys):
    extensions.Evaluator(make_iterator(), make_model(), progress_bar=True)()
    assert capsys.readouterr().out.splitlines() == [
        " 40% validation: 10 samples",
        " 80% validation: 20 samples",
        "100% validation: 25 samples",
    ]


def test_errors():
    with pytest.raises(ValueError, match="Evaluator: iterator 'main' never ends; make it with re"):
        extensions.Evaluator(SerialIterator(TupleDataset(X, T), 10), make_model())
    evaluator = extensions.Evaluator(make_iterator(), make_model())
    with pytest.raises(KeyError, match="get_target: there is no target named 'gen'; known: 'main'"):
        evaluator.get_target("gen")


def test_finalize_ends_the_iterators():
    finalized = []

    class Iterator(SerialIterator):
        def finalize(self):
            finalized.append(self)

    iterator = Iterator(TupleDataset(X, T), 3, repeat=False)
    extensions.Evaluator(iterator, make_model()).finalize()
    assert finalized == [iterator]


class _TwoMeans(mpchain.Chain):
    def __init__(self, combine):
        super().__init__()
        self.combine = combine

    def forward(self, x, t):
        of_labels = F.softmax_cross_entropy(x, t)  # two of three labels count
        of_elements = F.mean_squared_error(x, np.ones_like(x))
        total = self.combine(of_labels, of_elements)
        mpchain.report({"labels": of_labels, "elements": of_elements, "total": total}, self)


@pytest.mark.parametrize(
    "combine", [lambda a, b: a + b, lambda a, b: F.exp(a), lambda a, b: b - 0.5 * F.cast(a, "f")]
)
def test_tells_once_of_values_that_are_computed_from_other_means(combine):
    data = [(np.ones(2, "f"), np.int32(t)) for t in (0, -1, 1)]
    batches = mpchain.iterators.SerialIterator(data, 3, repeat=False, shuffle=False)
    evaluator = extensions.Evaluator(batches, _TwoMeans(combine))
    message = r"'main/total' is weighted by the number of samples \(3 .* a mean over 2 elements"
    with pytest.warns(UserWarning, match=message) as caught:
        evaluator()
        evaluator()
    assert len(caught) == 1


@pytest.mark.parametrize("combine", [lambda a, b: a, lambda a, b: F.sqrt(b), lambda a, b: (a, 2)])
def test_means_and_values_of_the_samples_are_not_told(combine):
    data = [(np.ones(2, "f"), np.int32(t)) for t in (0, -1, 1)]
    batches = mpchain.iterators.SerialIterator(data, 3, repeat=False, shuffle=False)
    extensions.Evaluator(batches, _TwoMeans(combine))()


@pytest.mark.parametrize("of_atoms", [False, True])
def test_tells_of_plain_means_over_atoms(of_atoms):
    molecules = [np.random.RandomState(n).randn(n, 3) for n in (1, 5, 2, 4, 1)]
    constant = np.ones((7, 2))

    def evaluate(*batch):
        joined = np.concatenate(batch) if of_atoms else np.stack([x.sum(axis=0) for x in batch])
        mpchain.report({"error": F.mean(joined**2), "constant": F.mean(constant)})

    batches = mpchain.iterators.SerialIterator(molecules, 2, repeat=False, shuffle=False)
    evaluator = extensions.Evaluator(
        batches, make_model(), lambda batch, _: tuple(batch), eval_func=evaluate
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluator()
        evaluator()
    expected = r"'error' is .* F.mean over 18 elements in a batch of 2, and over 3 in one of 1: "
    assert len(caught) == of_atoms
    assert all(re.search(expected, str(w.message)) for w in caught), caught


@pytest.mark.parametrize("loss", [F.mean_squared_error, F.mean_absolute_error])
def test_errors_of_atoms_are_means_over_atoms(loss):
    """Molecules have 1 to 5 atoms, and a batch joins the atoms of several molecules."""
    molecules = [np.random.RandomState(n).randn(n, 3) for n in (1, 5, 2, 4, 3)]
    whole = np.concatenate(molecules)

    def evaluate(joined):
        mpchain.report({"error": loss(joined, np.zeros_like(joined))})

    for batch_size in (1, 2, 5):
        batches = mpchain.iterators.SerialIterator(molecules, batch_size, repeat=False)
        evaluator = extensions.Evaluator(
            batches, {}, lambda batch, device: np.concatenate(batch), eval_func=evaluate
        )
        expected = loss(whole, np.zeros_like(whole)).array
        np.testing.assert_allclose(evaluator()["error"], expected, rtol=1e-12)


def test_means_of_each_sample_are_not_told():
    def evaluate(joined):
        parts = [joined[:1], joined[1:3], joined[3:]]
        errors = [F.mean_squared_error(x, np.zeros_like(x)) for x in parts]
        mpchain.report({"error": sum(errors[1:], errors[0]) / 3})

    molecules = [np.ones((n, 1)) for n in (1, 2, 4)]
    batches = mpchain.iterators.SerialIterator(molecules, 3, repeat=False, shuffle=False)
    evaluator = extensions.Evaluator(
        batches, {}, lambda batch, device: np.concatenate(batch), eval_func=evaluate
    )
    assert evaluator()["error"] == 1
