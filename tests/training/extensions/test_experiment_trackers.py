"""Tests trackers with fake libraries instead of the real ones, which are large."""

import importlib.machinery
import sys
import types

import pytest

from mpchain.serializers import load_npz
from mpchain.training import extensions


def install(monkeypatch, name, **content):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin=f"{name}.py")
    module.__spec__.has_location = True
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def wandb(monkeypatch):
    calls = []

    class Run:
        def __init__(self, options):
            self.id = options.get("id") or "new"

        def log(self, values, step):
            calls.append(("log", step, values["loss"], "elapsed_time" in values))

        def finish(self, exit_code):
            calls.append(("finish", exit_code))

    def init(**options):
        calls.append(("init", options))
        return Run(options)

    return install(monkeypatch, "wandb", run=None, init=init, Run=Run, calls=calls)


@pytest.fixture
def mlflow(monkeypatch):
    calls = []

    def start_run(run_id=None, **options):
        calls.append(("start_run", run_id, options))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "new"))

    return install(
        monkeypatch,
        "mlflow",
        calls=calls,
        active_run=lambda: None,
        set_experiment=lambda name: calls.append(("set_experiment", name)),
        start_run=start_run,
        log_params=lambda params: calls.append(("log_params", params)),
        log_metrics=lambda values, step: calls.append(("log_metrics", step, values["loss"])),
        end_run=lambda status: calls.append(("end_run", status)),
    )


def train(make_trainer, tracker, stop=4, on_update=lambda updater: None, resume=None, **options):
    def observe(trainer):
        trainer.observation["loss"] = float(trainer.updater.iteration)

    trainer = make_trainer((stop, "iteration"), on_update, **options)
    trainer.extend(observe, priority=300)
    trainer.extend(extensions.snapshot(), trigger=(2, "iteration"))
    trainer.extend(extensions.Hyperparameters({"lr": 0.5}))
    trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
    trainer.extend(tracker, name="tracker")
    if resume:
        load_npz(trainer.out / resume, trainer)
    trainer.run(show_loop_exception_msg=False)
    return trainer


def test_wandb(make_trainer, wandb):
    trainer = train(make_trainer, extensions.WandbReport("digits", name="first"))
    (_, options), *rest = wandb.calls
    assert options == {
        "project": "digits",
        "name": "first",
        "config": {"lr": 0.5},
        "dir": str(trainer.out),
        "id": None,
        "resume": None,
    }
    assert rest == [("log", 2, 1.5, True), ("log", 4, 3.5, True), ("finish", 0)]


def test_a_resumed_training_continues_its_run(make_trainer, wandb, mlflow):
    for tracker, calls in (
        (lambda: extensions.WandbReport(id="mine"), wandb.calls),
        (lambda: extensions.MlflowReport(), mlflow.calls),
    ):
        train(make_trainer, tracker())
        calls.clear()
        train(make_trainer, tracker(), stop=8, resume="snapshot_iter_4")
        assert [call[1] for call in calls if call[0].startswith("log")] == [6, 8]
    options = wandb.calls[0][1]
    assert (options["id"], options["resume"]) == ("mine", "allow")
    assert mlflow.calls[0] == ("start_run", "new", {})


def test_runs_of_the_program_are_used_and_left_open(make_trainer, wandb, mlflow):
    wandb.run = wandb.Run({"id": "own"})
    mlflow.active_run = lambda: types.SimpleNamespace(info=types.SimpleNamespace(run_id="own"))
    train(make_trainer, extensions.WandbReport())
    train(make_trainer, extensions.MlflowReport("digits"))
    assert [call[0] for call in wandb.calls] == ["log", "log"]
    assert [call[0] for call in mlflow.calls] == ["log_params", "log_metrics", "log_metrics"]


def test_mlflow(make_trainer, mlflow):
    train(make_trainer, extensions.MlflowReport("digits", {"units": 3}, run_name="first"))
    assert mlflow.calls == [
        ("set_experiment", "digits"),
        ("start_run", None, {"run_name": "first"}),
        ("log_params", {"units": 3}),
        ("log_metrics", 2, 1.5),
        ("log_metrics", 4, 3.5),
        ("end_run", "FINISHED"),
    ]


@pytest.mark.parametrize(
    ("error", "code", "status"), [(KeyboardInterrupt, 1, "KILLED"), (OSError, 1, "FAILED")]
)
def test_a_run_that_fails(make_trainer, wandb, mlflow, error, code, status):
    def fail(updater):
        if updater.iteration == 3:
            raise error

    for tracker in (extensions.WandbReport(), extensions.MlflowReport()):
        with pytest.raises(error):
            train(make_trainer, tracker, on_update=fail)
    assert wandb.calls[-1] == ("finish", code) and mlflow.calls[-1] == ("end_run", status)


def test_nothing_is_sent_by_test_runs_and_other_ranks(make_trainer, wandb, mlflow):
    for tracker in (extensions.WandbReport(), extensions.MlflowReport()):
        train(make_trainer, tracker, test=True)
    train(make_trainer, extensions.WandbReport(), rank=1)
    assert wandb.calls == mlflow.calls == []


@pytest.mark.parametrize(
    ("name", "tracker"),
    [("wandb", extensions.WandbReport), ("mlflow", extensions.MlflowReport)],
)
def test_library_is_not_installed(monkeypatch, import_from, tmp_path, name, tracker):
    import_from(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    message = f"{tracker.__name__}: {name} is not installed; pip install {name}"
    with pytest.raises(RuntimeError, match=message):
        tracker()
    (tmp_path / name).mkdir()  # wandb leaves such a folder
    with pytest.raises(RuntimeError, match=message):
        tracker()
