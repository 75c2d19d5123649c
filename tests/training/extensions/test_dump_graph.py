"""Tests extensions that write or release graphs of reported variables."""

import os
import re

import numpy as np
import pytest

from mpchain import Variable, config, optimizers, training, using_config
from mpchain import functions as F
from mpchain import links as L
from mpchain.datasets import TupleDataset
from mpchain.iterators import SerialIterator
from mpchain.training import extensions


@pytest.fixture
def no_dot(monkeypatch):
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def real_trainer(tmp_path):
    x = np.random.RandomState(0).normal(size=(12, 3)).astype("f")
    model = L.Classifier(L.Linear(3, 2))
    data = TupleDataset(x, (x[:, 0] > 0).astype("i"))
    updater = training.StandardUpdater(SerialIterator(data, 4), optimizers.SGD().setup(model))
    return training.Trainer(updater, (4, "iteration"), tmp_path / "result")


def has_graph(trainer):
    return trainer.observation["main/loss"].creator_node is not None


def test_graph_of_the_first_iteration(real_trainer, no_dot, capsys):
    seen = []
    real_trainer.extend(extensions.DumpGraph("main/loss"))
    real_trainer.extend(lambda t: seen.append((config.keep_graph_on_report, has_graph(t))), "seen")
    real_trainer.run()
    assert os.listdir(real_trainer.out) == ["cg.dot"]
    base = f"{real_trainer.out}/cg"
    assert capsys.readouterr().err == (
        f"DumpGraph: to see the graph, install Graphviz: dot -Tsvg {base}.dot -o {base}.svg\n"
    )
    assert real_trainer.get_extension("dump_graph").default_name == "dump_graph"
    text = (real_trainer.out / "cg.dot").read_text()
    assert text.startswith("digraph graphname{rankdir=TB;")
    labels = re.findall(r'label="(\w+)"', text)
    assert labels.count("linear") == 1
    assert sum("softmax_cross_entropy" in label for label in labels) == 1
    assert text.count("->") == 6  # x, W, b -> linear -> y -> loss function -> loss
    assert seen == [(False, True), (False, False), (False, False), (False, False)]


def test_the_name_of_an_image_is_not_that_of_the_graph(real_trainer, no_dot, capsys):
    real_trainer.extend(extensions.DumpGraph("main/loss", "graph.svg"))
    real_trainer.run()
    assert os.listdir(real_trainer.out) == ["graph.dot"]
    base = f"{real_trainer.out}/graph"
    assert f"dot -Tsvg {base}.dot -o {base}.svg" in capsys.readouterr().err


def test_styles_and_name(real_trainer, no_dot):
    extension = extensions.dump_graph(
        "main/loss", "a.dot", {"shape": "circle"}, function_style={"color": "red"}
    )
    real_trainer.extend(extension)
    real_trainer.run()
    text = (real_trainer.out / "a.dot").read_text()
    assert 'shape="circle"' in text and 'color="red"' in text and "octagon" not in text


FAKE_DOT = "#!/bin/sh\ntest {code} = 0 && echo drawn $1 > $4\nexit {code}\n"


@pytest.mark.parametrize("code", [0, 1])
def test_image_where_dot_is_installed(real_trainer, monkeypatch, tmp_path, code):
    dot = tmp_path / "dot"
    dot.write_text(FAKE_DOT.format(code=code))
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    real_trainer.extend(extensions.DumpGraph("main/loss"))
    if code == 0:
        real_trainer.run()
        for kind in ("png", "svg"):
            assert (real_trainer.out / f"cg.{kind}").read_text() == f"drawn -T{kind}\n"
    else:
        with pytest.warns(UserWarning, match=r"cg.dot was written, but not drawn: .* exit status"):
            real_trainer.run()
        assert os.listdir(real_trainer.out) == ["cg.dot"]


def test_a_name_that_is_not_reported(real_trainer):
    real_trainer.extend(extensions.DumpGraph("main/los"))
    with pytest.raises(KeyError, match="'main/los' was not reported; reported: 'main/loss'"):
        real_trainer.run(show_loop_exception_msg=False)
    assert config.keep_graph_on_report is False


def test_a_value_without_graph_is_warned_of(make_trainer):
    trainer = make_trainer()
    trainer.extend(lambda trainer: trainer.observation.update(loss=1.0), "report", priority=1000)
    trainer.extend(extensions.DumpGraph("loss"))
    with pytest.warns(UserWarning, match="no graph is written, because 'loss' was reported"):
        trainer.run()
    assert os.listdir(trainer.out) == []


@pytest.mark.parametrize("keep", [False, True])
def test_configuration_is_put_back_if_the_first_iteration_fails(make_trainer, keep):
    def fail(updater):
        assert config.keep_graph_on_report
        raise ZeroDivisionError

    trainer = make_trainer(on_update=fail)
    trainer.extend(extensions.DumpGraph("loss"))
    with using_config("keep_graph_on_report", keep), pytest.raises(ZeroDivisionError):
        trainer.run(show_loop_exception_msg=False)
        assert config.keep_graph_on_report == keep


def test_unchain_variables(make_trainer):
    seen = []
    x = Variable(np.ones(3, "f"))

    def report(trainer):
        y = F.sum(F.exp(x))
        trainer.observation.update(y=y, text="a", number=3)

    def look(trainer):
        y = trainer.observation["y"]
        seen.append((y.creator_node is not None, float(y.array)))

    trainer = make_trainer((2, "iteration"))
    trainer.extend(report, priority=training.PRIORITY_WRITER)
    trainer.extend(extensions.unchain_variables())
    trainer.extend(look, "before")
    trainer.extend(look, "after", priority=-1)
    trainer.run()
    assert seen == [(True, pytest.approx(3 * np.e)), (False, pytest.approx(3 * np.e))] * 2
    assert trainer.get_extension("unchain_variables").priority == 0
