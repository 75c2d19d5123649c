"""Tests extensions that observe or plot statistics."""

import json

import numpy as np
import pytest

from mpchain import Chain, Parameter, Variable, training
from mpchain import functions as F
from mpchain import links as L
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from mpchain.training import extensions

pytestmark = pytest.mark.slow

SIGMAS = (0.13, 2.28, 15.87, 50, 84.13, 97.72, 99.87)


class MLP(Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(2, 3)
            self.l2 = L.Linear(None, 2)  # the W of this layer is never initialized

    def forward(self, x):
        return F.relu(self.l1(x))


@pytest.fixture
def model():
    return MLP()


@pytest.fixture
def run(make_trainer):
    """Returns a function that runs an extension on parameters that change, and returns the
    observations by iteration."""

    def run(model, extension, n=4, state=None, save_at=None):
        observations = {}

        def change(trainer):
            i = trainer.updater.iteration
            random = np.random.RandomState(i)
            model.l1.W.array[...] = random.normal(size=(3, 2))
            model.l1.W.grad = random.normal(size=(3, 2)).astype("f") if i > 1 else None
            model.l1.b.grad = np.zeros(3, "f")

        def keep(trainer):
            observations[trainer.updater.iteration] = dict(trainer.observation)
            if trainer.updater.iteration == save_at:
                serializer = DictionarySerializer()
                serializer.save(trainer)
                extension.saved = serializer.target

        trainer = make_trainer((n, "iteration"))
        trainer.extend(change, priority=1000)
        trainer.extend(extension)
        trainer.extend(keep, priority=0)
        if state is not None:
            NpzDeserializer(state).load(trainer)
        trainer.run()
        return observations

    return run


def arrays(iterations, kind):
    """Yields the values of ``l1/W``, or its gradients, in the fixture ``run``."""
    for i in iterations:
        random = np.random.RandomState(i)
        data, grad = random.normal(size=(3, 2)).astype("f"), random.normal(size=(3, 2)).astype("f")
        if kind == "data" or i > 1:
            yield data if kind == "data" else grad


@pytest.mark.parametrize("kind", ["data", "grad"])
def test_default_statistics(run, model, kind):
    extension = extensions.ParameterStatistics(model, trigger=(2, "iteration"))
    observations = run(model, extension)
    assert [i for i, values in observations.items() if values] == [2, 4]
    for last in (2, 4):
        values = observations[last]
        expected = list(arrays((last - 1, last), kind))
        name = f"None/l1/W/{kind}/"
        for statistic in ("mean", "std", "min", "max"):
            mean = np.mean([getattr(np.float64(x), statistic)() for x in expected])
            np.testing.assert_allclose(values[name + statistic], mean, rtol=1e-6)
        assert values[name + "zeros"] == 0
        means = np.mean([np.percentile(x, SIGMAS) for x in expected], axis=0)
        got = [values[f"{name}percentile/{i}"] for i in range(7)]
        np.testing.assert_allclose(got, means, rtol=1e-6)
    assert values[f"None/l1/b/{kind}/zeros"] == 3
    assert not any("l2/W" in name for name in values)
    # The b of l2 is initialized, but has no gradient.
    assert len(values) == (6 - 1 + 7) * (2 * 2 + 1)


def test_own_statistics_of_named_links(run, model):
    extension = extensions.ParameterStatistics(
        [model.l1],
        statistics={"square": lambda x: (x * x).sum()},
        report_grads=False,
        prefix="pre",
        trigger=(1, "iteration"),
    )
    extension.register_statistics("ends", lambda x: x.reshape(-1)[[0, -1]])
    values = run(model, extension, 1)[1]
    W = model.l1.W.array
    np.testing.assert_allclose(
        [values[f"pre/l1/W/data/{name}"] for name in ("square", "ends/0", "ends/1")],
        [(W * W).sum(), W[0, 0], W[2, 1]],
    )
    assert len(values) == 6
    assert "ends" not in extensions.ParameterStatistics.default_statistics


def test_own_names_of_values(run, model):
    class Short(extensions.ParameterStatistics):
        report_key_template = "{prefix}{function_name} of {link_name}{param_name}.{attr_name}"

    options = {"prefix": "a", "report_grads": False, "trigger": (1, "iteration")}
    extension = Short(model.l1, {"max": np.max}, **options)
    names = ["a/max of l1/W.data", "a/max of l1/b.data"]
    assert sorted(run(model, extension, 1)[1]) == names


@pytest.mark.parametrize("skip", [False, True])
def test_nan_in_parameters(run, model, skip):
    model.l1.b.array[1] = np.nan
    called = []
    extension = extensions.ParameterStatistics(
        model.l1,
        statistics={"two": lambda x: called.append(x) or np.array([1.0, 2.0])},
        report_grads=False,
        trigger=(1, "iteration"),
        skip_nan_params=skip,
    )
    values = run(model, extension, 1)[1]
    b = {name: value for name, value in values.items() if "/b/" in name}
    if skip:
        assert list(b) == ["l1/b/data/two"] and np.isnan(b["l1/b/data/two"])
    else:
        assert b == {"l1/b/data/two/0": 1, "l1/b/data/two/1": 2}
    assert len(called) == 2 - skip


@pytest.mark.parametrize("pause", [1, 2, 3])
def test_parameter_statistics_resume(run, model, pause):
    def make():
        return extensions.ParameterStatistics(model, trigger=(2, "iteration"))

    first = make()
    expected = run(model, first, save_at=pause)
    resumed = run(model, make(), state=first.saved)
    assert resumed == {i: values for i, values in expected.items() if i > pause}


def test_state_without_the_entries_that_chainer_does_not_have(run, model):
    first = extensions.ParameterStatistics(model)
    run(model, first, save_at=3)
    state = {
        key: value
        for key, value in first.saved.items()
        if not key.startswith("extensions/parameter_statistics/")
    }
    assert len(state) < len(first.saved)
    run(model, extensions.ParameterStatistics(model), state=state)


def curves(monkeypatch):
    """Returns a dict that is filled when figures are written: the drawn curves by the label of the
    y axis, then their labels, the label of the x axis and the size."""
    found = {}
    write = extensions.VariableStatisticsPlot.write

    def write_figure(plot, figure, folder):
        for axes in figure.axes:
            found[axes.get_ylabel()] = [line.get_xydata().tolist() for line in axes.lines]
            found["labels"] = [line.get_label() for line in axes.lines]
            found["x"] = axes.get_xlabel()
        found["size"] = figure.get_size_inches().tolist()
        write(plot, figure, folder)

    monkeypatch.setattr(extensions.VariableStatisticsPlot, "write", write_figure)
    return found


def test_statistics_plot(run, model, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    found = curves(monkeypatch)
    plot = extensions.VariableStatisticsPlot(model.params(), trigger=(4, "iteration"))
    run(model, plot)
    assert [path.name for path in (tmp_path / "result").iterdir()] == ["statistics.png"]
    others = [model.l1.b.array, model.l2.b.array]
    for kind, zeros in (("data", others), ("grad", [np.zeros(3)])):
        expected = {"mean": [], "std": [], "percentile": []}
        first = 1 if kind == "data" else 2
        for x in arrays(range(first, 5), kind):
            parts = [np.float64(x), *np.float64(zeros)] if kind == "grad" else [x, *zeros]
            expected["mean"].append(np.mean([part.mean() for part in parts]))
            expected["std"].append(np.mean([part.std() for part in parts]))
            ranks = (0, *SIGMAS, 100)
            expected["percentile"].append(
                np.mean([np.percentile(part, ranks) for part in parts], axis=0)
            )
        for statistic, values in expected.items():
            got = found[f"{statistic} of {kind}"]
            np.testing.assert_array_equal([x for x, _ in got[0]][-len(values) :], range(first, 5))
            got = np.array(got)[..., -len(values) :, 1].T.reshape(np.shape(values))
            np.testing.assert_allclose(got, values, rtol=1e-5, atol=1e-6)
    assert found["x"] == "iteration"
    assert found["labels"] == [f"{rank:g} %" for rank in (0, *SIGMAS, 100)]


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"report_grad": False, "plot_std": False}, ["mean of data", "percentile of data"]),
        ({"report_data": False, "percentile_sigmas": ()}, ["mean of grad", "std of grad"]),
        ({"plot_mean": False, "plot_std": False, "percentile_sigmas": 50},
         ["percentile of data", "percentile of grad"]),
    ],
)  # fmt: skip
def test_what_is_plotted(run, model, monkeypatch, options, labels, tmp_path):
    pytest.importorskip("matplotlib")
    found = curves(monkeypatch)
    plot = extensions.VariableStatisticsPlot(
        model.l1.W, file_name="a.svg", figsize=(5, 4), marker="o", grid=False, **options
    )
    run(model, plot)
    assert sorted(label for label in found if " of " in label) == labels
    assert found["size"] == [5, 4]
    content = (tmp_path / "result" / "a.svg").read_bytes()
    assert content.startswith(b"<?xml") and b"<svg" in content


@pytest.mark.long
@pytest.mark.parametrize("n", [4, 5, 9, 33])
def test_points_are_thinned_out_evenly(run, model, monkeypatch, n):
    pytest.importorskip("matplotlib")
    found = curves(monkeypatch)
    plot = extensions.VariableStatisticsPlot(
        model.l1.W, max_sample_size=4, trigger=(n, "iteration"), report_grad=False
    )
    run(model, plot, n)
    stride = 2 ** int(np.ceil(np.log2(n / 4)))
    assert [x for x, _ in found["mean of data"][0]] == list(range(1, n + 1, stride))
    assert np.isfinite(found["mean of data"]).all()


@pytest.mark.long
def test_statistics_plot_resumes_and_does_not_touch_random_numbers(run, model, monkeypatch):
    pytest.importorskip("matplotlib")

    def make():
        return extensions.VariableStatisticsPlot(
            model.params(), max_sample_size=3, trigger=(7, "iteration")
        )

    found = curves(monkeypatch)
    np.random.seed(0)
    run(model, first := make(), 7, save_at=4)
    assert np.random.uniform() == np.random.RandomState(0).uniform()
    expected = dict(found)
    found.clear()
    run(model, make(), 7, state=first.saved)
    assert found == expected
    json.dumps(found)


def test_variables_without_arrays_are_left_out(make_trainer):
    pytest.importorskip("matplotlib")
    targets = [Parameter(), Variable(np.array([1, 2])), Variable(np.zeros(0, "f"))]
    trainer = make_trainer((1, "iteration"))
    trainer.extend(plot := extensions.VariableStatisticsPlot(targets, percentile_sigmas=50))
    trainer.run()
    assert plot._samples == [[1, {"data": [1.5, 0.5, 1.5], "grad": None}]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([np.zeros(3)],), TypeError, "targets must be Variables, but one is a ndarray"),
        ((Parameter(), 1), ValueError, "max_sample_size must be at least 2, not 1"),
        ((Parameter(), 5, False, False), ValueError, "at least one of report_data"),
        (
            (Parameter(), 5, True, True, False, False, ()),
            ValueError,
            "at least one of report_data",
        ),
    ],
)
def test_wrong_arguments_of_the_plot(arguments, error, message):
    with pytest.raises(error, match=message):
        extensions.VariableStatisticsPlot(*arguments)


def run_average(make_trainer, values, state=None, save_at=None):
    """Observes (numerator, denominator) by iteration; returns the quotients by iteration, and what
    the trainer saved at iteration ``save_at``."""
    found, saved = {}, {}

    def observe(trainer):
        pair = values[trainer.updater.iteration - 1]
        trainer.observation.update(dict(zip(("n", "d"), pair, strict=False)))

    def keep(trainer):
        i = trainer.updater.iteration
        if "r" in trainer.observation:
            found[i] = trainer.observation["r"]
        if i == save_at:
            serializer = DictionarySerializer(saved)
            serializer.save(trainer)

    trainer = make_trainer((len(values), "iteration"))
    trainer.extend(observe, priority=training.PRIORITY_WRITER)
    trainer.extend(extensions.MicroAverage("n", "d", "r", trigger=(3, "iteration")))
    trainer.extend(keep, priority=0)
    if state is not None:
        NpzDeserializer(state).load(trainer)
    trainer.run(show_loop_exception_msg=False)
    return found, saved


AVERAGED = [(1, 4), (np.float32(2), np.array(5)), (Variable(np.array(3.0)), 1), (), (5, 10), (0, 6)]


def test_micro_average(make_trainer):
    assert run_average(make_trainer, AVERAGED)[0] == {3: 6 / 10, 6: 5 / 16}


@pytest.mark.parametrize("pause", range(1, 6))
def test_micro_average_resumes(make_trainer, pause):
    expected, state = run_average(make_trainer, AVERAGED, save_at=pause)
    resumed, _ = run_average(make_trainer, AVERAGED, state)
    assert resumed == {i: r for i, r in expected.items() if i > pause}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([(1, 0)] * 3, ZeroDivisionError, "the sum of 'd' over the interval is 0"),
        ([(1, 1), (1,)], KeyError, "'d' was not reported at iteration 2, but the other value was"),
    ],
)
def test_micro_average_rejects(make_trainer, values, error, message):
    with pytest.raises(error, match=message):
        run_average(make_trainer, values)
