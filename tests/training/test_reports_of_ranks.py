"""Tests which rank shows and writes, with an optimizer whose communicator returns a given rank."""

import pytest

from mpchain.serializers import DictionarySerializer, NpzDeserializer
from mpchain.training import Extension, extensions


class Recorder(Extension):
    """An extension that appends its calls to a list."""

    def __init__(self, is_report):
        self.is_report, self.calls, self.n_asked = is_report, [], 0

    def trigger(self, trainer):
        self.n_asked += 1
        return True

    def initialize(self, trainer):
        self.calls.append("initialize")

    def __call__(self, trainer):
        self.calls.append("call")

    def on_error(self, trainer, exc, tb):
        self.calls.append("on_error")

    def finalize(self):
        self.calls.append("finalize")

    def serialize(self, serializer):
        serializer("value", 1)


def fail(updater):
    if updater.iteration == 1:
        raise OSError


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_report", [True, False])
def test_only_rank_0_calls_reports(make_trainer, rank, is_report):
    trainer = make_trainer(rank=rank, on_update=fail)
    recorder = Recorder(is_report)
    trainer.extend(recorder, call_before_training=True)
    with pytest.raises(OSError):
        trainer.run(show_loop_exception_msg=False)
    every = ["initialize", "call", "call", "on_error", "finalize"]
    assert recorder.calls == ([] if rank and is_report else every)
    assert recorder.n_asked == 1  # triggers may communicate, and have state
    state = DictionarySerializer()
    state.save(trainer)
    assert ("extensions/Recorder/value" in state.target) == (not (rank and is_report))


def test_rank_1_resumes_from_the_file_of_rank_0_and_the_reverse(make_trainer):
    for saves, loads in ((0, 1), (1, 0)):
        saver = make_trainer(rank=saves)
        saver.extend(extensions.PlotReport("loss"))
        state = DictionarySerializer()
        state.save(saver)
        loader = make_trainer(rank=loads)
        loader.extend(extensions.PlotReport("loss"))
        if saves == 0:
            NpzDeserializer(state.target).load(loader)
            assert loader.is_resumed
        else:
            with pytest.raises(KeyError, match=r"_plot_plot\.png"):
                NpzDeserializer(state.target).load(loader)


def add_reports(trainer):
    def observe(trainer):
        trainer.observation["loss"] = 1.0

    trainer.extend(observe, priority=300)
    trainer.extend(extensions.LogReport(["loss", "absent"], trigger=(1, "iteration")))
    trainer.extend(extensions.PrintReport(["iteration", "loss"]))
    trainer.extend(extensions.JsonLinesReport())
    trainer.extend(extensions.PlotReport("loss", trigger=(2, "iteration")))
    trainer.extend(extensions.ProgressBar(update_interval=1))


@pytest.mark.filterwarnings("ignore:PlotReport:UserWarning")  # matplotlib may not be installed
def test_rank_1_is_silent_but_logs(make_trainer, capsys):
    trainer = make_trainer(rank=1)
    add_reports(trainer)
    trainer.run()
    assert capsys.readouterr().out == ""
    assert list(trainer.out.iterdir()) == []
    assert [entry["loss"] for entry in trainer.get_extension("LogReport").log] == [1.0] * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PlotReport:UserWarning")
def test_rank_1_reports_if_asked_to(make_trainer, capsys):
    trainer = make_trainer(rank=1)
    trainer.writes_reports = True
    add_reports(trainer)
    with pytest.warns(UserWarning, match="never reported: 'absent'"):
        trainer.run()
    assert "iteration   loss\n1           1" in capsys.readouterr().out
    names = {path.name for path in trainer.out.iterdir()}
    assert {"log", "log.jsonl"} <= names


def test_rank_0_of_a_communicator_reports(make_trainer):
    assert make_trainer().writes_reports
    assert make_trainer(rank=0).writes_reports
    assert not make_trainer(rank=3).writes_reports
