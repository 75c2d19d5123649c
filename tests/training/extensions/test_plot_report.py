import contextlib
import sys
import warnings

import numpy as np
import pytest

from mpchain import Variable
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from mpchain.training import extensions
from mpchain.training.extensions import figures

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n\x1a\n"


class Curves:
    """A postprocess callback that stores the plotted curves."""

    def __call__(self, figure, axes, summary):
        self.curves = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
        self.x_label, self.y_label = axes.get_xlabel(), axes.get_ylabel()
        self.title = axes.get_title()
        self.markers = {line.get_marker() for line in axes.lines}
        self.summary = summary


def test_plot(run_with_values):
    pytest.importorskip("matplotlib")
    curves = Curves()
    report = extensions.PlotReport(["loss", "validation/loss", "absent"], postprocess=curves)
    with pytest.warns(
        UserWarning,
        match=r"PlotReport: .* never reported: 'validation/loss', 'absent'",
    ):
        trainer = run_with_values([1.0, 2.0, 6.0, None, 8.0], [report])
    assert (trainer.out / "plot.png").read_bytes().startswith(PNG)
    assert [path.name for path in trainer.out.iterdir()] == ["plot.png"]
    assert curves.curves == {"loss": [[3.0, 3.0], [5.0, 8.0]]}
    assert (curves.x_label, curves.y_label) == ("iteration", "loss, absent")
    assert curves.title == "loss, absent by iteration"
    assert curves.markers == {"x"}
    assert curves.summary == {"loss": 8.0, "epoch": 2, "iteration": 5}


@pytest.mark.parametrize(
    ("x_key", "expected"), [("epoch", [[1.0, 3.0]]), ("x", [[2.0, 3.0]]), ("absent", None)]
)
def test_plot_over_another_value(run_with_values, x_key, expected):
    pytest.importorskip("matplotlib")

    def observe(trainer):
        trainer.observation["x"] = float(trainer.updater.iteration)

    observe.priority = 500
    curves = Curves()
    report = extensions.PlotReport("loss", x_key, postprocess=curves, marker=None, grid=False)
    never = pytest.warns(
        UserWarning, match=r"PlotReport: .* never reported: 'absent'; reported were "
    )
    with never if expected is None else contextlib.nullcontext():
        trainer = run_with_values([1.0, 2.0, 6.0], [observe, report])
    assert (trainer.out / "plot.png").exists() == (expected is not None)
    if expected is not None:
        assert curves.curves == {"loss": expected}


@pytest.mark.parametrize("argument", ["filename", "file_name"])
@pytest.mark.parametrize(("name", "start"), [("a.png", PNG), ("a.svg", b"<?xml"), ("a", PNG)])
def test_file_name_and_format(run_with_values, argument, name, start):
    pytest.importorskip("matplotlib")
    trainer = run_with_values([1.0] * 3, [extensions.PlotReport("loss", **{argument: name})])
    assert (trainer.out / name).read_bytes().startswith(start)


def test_plot_leaves_pyplot_alone(run_with_values):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    run_with_values([1.0] * 3, [extensions.PlotReport("loss")])
    assert pyplot.get_fignums() == before


@pytest.mark.long
@pytest.mark.parametrize("pause", [0, 2, 3, 6])
def test_resume(make_trainer, tmp_path, pause):
    pytest.importorskip("matplotlib")

    def train(length, resume_from=None):
        curves = Curves()

        def observe(trainer):
            trainer.observation["loss"] = float(trainer.updater.iteration**2)

        trainer = make_trainer((length, "iteration"))
        trainer.extend(observe, priority=300)
        trainer.extend(extensions.PlotReport("loss", postprocess=curves))
        if resume_from is not None:
            NpzDeserializer(resume_from).load(trainer)
        trainer.run()
        serializer = DictionarySerializer()
        serializer.save(trainer)
        return curves, serializer.target

    expected, _ = train(8)
    _, state = train(pause) if pause else (None, None)
    assert train(8, state)[0].curves == expected.curves
    np.testing.assert_array_equal(expected.curves["loss"], [[3, 14 / 3], [5, 41 / 2], [8, 149 / 3]])


def make_plots():
    return [
        extensions.PlotReport("loss"),
        extensions.VariableStatisticsPlot(Variable(np.zeros(3))),
    ]


def test_without_matplotlib(run_with_values, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # this makes the import of matplotlib fail
    figures.warn_unavailable.cache_clear()
    with pytest.warns(UserWarning) as warned:
        plots = make_plots()
    assert [str(warning.message) for warning in warned] == [
        f"{name}: no plots are written, because matplotlib is not installed; pip install "
        "'mpchain[plot]'"
        for name in ("PlotReport", "VariableStatisticsPlot")
    ]
    assert not any(plot.available() for plot in plots)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_plots()
    trainer = run_with_values([1.0] * 3, plots)
    assert list(trainer.out.iterdir()) == []


def test_drawing_takes_a_hundredth_of_the_time(clock):
    """By the test's clock, an epoch takes 1 s and a drawing 0.1 s."""
    drawn = []
    extension = extensions.PlotReport("x", filename="a.png")

    def draw(epoch):
        drawn.append(epoch)
        clock.now += 0.1

    for epoch in range(1, 36):
        clock.now += 1
        extension.draw(lambda epoch=epoch: draw(epoch))
    assert drawn == [10, 20, 30]
    extension.finalize()
    assert drawn == [10, 20, 30, 35]
    extension.finalize()
    assert len(drawn) == 4
