import os
import signal

import numpy as np
import pytest

from mpchain.serializers import (
    SerializationError,
    load_npz,
    save_hdf5,
    save_npz,
    save_safetensors,
)
from mpchain.training import extensions
from mpchain.training.extensions import SimpleWriter, Writer


class Counter:
    """An object with one value to save."""

    def __init__(self, value=0):
        self.value = value

    def __call__(self, trainer):
        self.value += 1

    def serialize(self, serializer):
        self.value = serializer("value", self.value)


def names(trainer):
    return sorted(path.name for path in trainer.out.iterdir())


def run(make_trainer, extension, stop_trigger=(2, "epoch"), trigger=None, **options):
    trainer = make_trainer(stop_trigger, **options)
    trainer.extend(Counter(), "counter")
    trainer.extend(extension, trigger=trigger)
    trainer.run()
    return trainer


def test_snapshot_holds_the_trainer_after_all_other_extensions(make_trainer):
    trainer = run(make_trainer, extensions.snapshot())
    assert names(trainer) == ["snapshot_iter_3", "snapshot_iter_5"]
    other = make_trainer()
    counter = Counter()
    other.extend(counter, "counter", priority=-99)
    load_npz(trainer.out / "snapshot_iter_3", other, strict=False)
    assert (other.updater.iteration, counter.value) == (3, 3)
    assert other.updater.epoch_detail == trainer.updater.epoch_detail - 0.8


def test_snapshot_object(make_trainer):
    counter = Counter(7)
    extension = extensions.snapshot_object(counter, "counter_{.updater.epoch}.npz")
    trainer = run(make_trainer, extension)
    assert names(trainer) == ["counter_1.npz", "counter_2.npz"]
    load_npz(trainer.out / "counter_1.npz", counter := Counter())
    assert counter.value == 7


def test_target_and_function_as_filename(make_trainer):
    extension = extensions.snapshot(
        filename=lambda trainer: f"at_{trainer.updater.iteration}", target=Counter(7)
    )
    trainer = run(make_trainer, extension, trigger=(2, "iteration"))
    assert names(trainer) == ["at_2", "at_4"]
    load_npz(trainer.out / "at_4", counter := Counter())
    assert counter.value == 7


def test_condition(make_trainer):
    conditions = iter([False, True, False, True, False])
    extension = extensions.snapshot(condition=lambda: next(conditions))
    trainer = run(make_trainer, extension, trigger=(1, "iteration"))
    assert names(trainer) == ["snapshot_iter_2", "snapshot_iter_4"]


@pytest.mark.parametrize(("n_retains", "expected"), [(1, [12]), (2, [11, 12]), (30, range(1, 13))])
def test_n_retains(make_trainer, n_retains, expected):
    extension = extensions.snapshot(n_retains=n_retains)
    trainer = run(make_trainer, extension, (12, "iteration"), (1, "iteration"))
    assert names(trainer) == sorted(f"snapshot_iter_{i}" for i in expected)


def test_n_retains_leaves_other_files_alone(make_trainer, tmp_path):
    out = tmp_path / "result"
    out.mkdir()
    others = ["snapshot_iter_", "snapshot_iter_1.png", "old_snapshot_iter_1", "snapshot_iter_1.0.x"]
    for name in others:
        (out / name).touch()
    trainer = run(make_trainer, extensions.snapshot(n_retains=1))
    assert names(trainer) == sorted([*others, "snapshot_iter_5"])


def fail_at(iteration):
    def on_update(updater):
        if updater.iteration == iteration:
            raise ZeroDivisionError

    return on_update


@pytest.mark.parametrize(
    ("on_error", "trigger", "expected"),
    [
        (True, (1, "epoch"), ["snapshot_iter_3", "snapshot_iter_4"]),
        (False, (1, "epoch"), ["snapshot_iter_3"]),
    ],
)
def test_snapshot_on_error(make_trainer, tmp_path, on_error, trigger, expected):
    with pytest.raises(ZeroDivisionError):
        run(
            make_trainer,
            extensions.snapshot(snapshot_on_error=on_error),
            trigger=trigger,
            on_update=fail_at(4),
        )
    assert sorted(os.listdir(tmp_path / "result")) == expected


def test_snapshot_on_error_does_not_replace_the_one_before_the_failing_iteration(
    make_trainer, tmp_path
):
    writes = []

    class Recorder(Writer):
        def __call__(self, filename, outdir, target):
            writes.append(filename)

    extension = extensions.snapshot(writer=Recorder(), snapshot_on_error=True)
    with pytest.raises(ZeroDivisionError):
        run(make_trainer, extension, trigger=(2, "iteration"), on_update=fail_at(4))
    assert writes == ["snapshot_iter_2", "snapshot_iter_4"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, []), ({"on_interrupt": True}, [2]), ({"snapshot_on_error": True}, [2]),
     ({"on_interrupt": True, "condition": lambda: False}, [2])],
)  # fmt: skip
def test_snapshot_on_interrupt(make_trainer, tmp_path, options, expected, capfd):
    def on_update(updater):
        if updater.iteration == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(make_trainer, extensions.snapshot(**options), on_update=on_update)
    assert os.listdir(tmp_path / "result") == [f"snapshot_iter_{i}" for i in expected]


def test_no_snapshot_on_interrupt_of_an_iteration_that_was_saved_or_not_completed(
    make_trainer, tmp_path, capfd
):
    writes = []

    class Recorder(Writer):
        def __call__(self, filename, outdir, target):
            writes.append(filename)

    def interrupt(n):
        def on_update(updater):
            if updater.iteration == 3:
                for _ in range(n):
                    signal.raise_signal(signal.SIGINT)

        return on_update

    for n in (1, 2):
        extension = extensions.snapshot(writer=Recorder(), on_interrupt=True)
        with pytest.raises(KeyboardInterrupt):
            run(make_trainer, extension, trigger=(2, "iteration"), on_update=interrupt(n))
    assert writes == ["snapshot_iter_2", "snapshot_iter_4", "snapshot_iter_2"]


def test_writer_is_finalized(make_trainer):
    events = []

    class Recorder(Writer):
        def __call__(self, filename, outdir, target):
            events.append((filename, os.fspath(outdir), target))

        def finalize(self):
            events.append("finalize")

    trainer = run(make_trainer, extensions.snapshot(writer=Recorder()), (3, "iteration"))
    assert events == [("snapshot_iter_3", os.fspath(trainer.out), trainer), "finalize"]


def test_savefun_with_options(make_trainer):
    def savefun(path, target, text):
        with open(path, "w") as file:
            file.write(f"{text} {target.value}")

    counter = Counter(5)
    writer = SimpleWriter(savefun, text="value")
    trainer = run(make_trainer, extensions.snapshot_object(counter, "a.txt", writer=writer))
    assert (trainer.out / "a.txt").read_text() == "value 5"
    extension = extensions.snapshot_object(
        counter, "b.npz", savefun=lambda path, target: np.savez(path, value=target.value)
    )
    trainer = run(make_trainer, extension)
    assert names(trainer) == ["a.txt", "b.npz"]
    assert np.load(trainer.out / "b.npz")["value"] == 5


def test_failing_write_leaves_the_previous_file_and_no_other(make_trainer, tmp_path):
    contents = iter(["first"])

    def savefun(path, target):
        with open(path, "w") as file:
            file.write("half of ")
            file.write(next(contents))

    with pytest.raises(StopIteration):
        run(make_trainer, extensions.snapshot(savefun, "a"), trigger=(1, "iteration"))
    assert os.listdir(tmp_path / "result") == ["a"]
    assert (tmp_path / "result" / "a").read_text() == "half of first"


def test_autoload_goes_on_from_the_latest(make_trainer, capsys):
    first = run(make_trainer, extensions.snapshot(autoload=True), (3, "epoch"))
    assert capsys.readouterr().out == ""
    assert names(first) == ["snapshot_iter_3", "snapshot_iter_5", "snapshot_iter_8"]
    second = run(make_trainer, extensions.snapshot(autoload=True), (5, "epoch"))
    path = first.out / "snapshot_iter_8"
    assert capsys.readouterr().out == f"training goes on from {path}\n"
    assert second.updater.iteration == 13
    assert second.get_extension("counter").value == 13
    assert second.elapsed_time > first.elapsed_time


@pytest.mark.parametrize(
    ("seconds", "expected"), [((1, 2, 3), 10), ((3, 2, 1), 2), ((5, 5, 5), 10)]
)
def test_latest_is_by_time_and_then_by_number(make_trainer, seconds, expected):
    extension = extensions.snapshot_object(Counter(), "at_{.updater.iteration}")
    trainer = run(make_trainer, extension, (10, "iteration"), (1, "iteration"))
    for path in trainer.out.iterdir():
        if path.name not in ("at_2", "at_9", "at_10"):
            path.unlink()
    for iteration, second in zip((2, 9, 10), seconds, strict=True):
        path = trainer.out / f"at_{iteration}"
        run_savefun(path, iteration)
        os.utime(path, (second, second))
    counter = Counter()
    run(
        make_trainer,
        extensions.snapshot_object(
            counter, "at_{.updater.iteration}", autoload=True, condition=lambda: False
        ),
    )
    assert counter.value == expected


def run_savefun(path, value):
    SimpleWriter()(path.name, path.parent, Counter(value))


@pytest.mark.parametrize("savefun", [save_npz, save_safetensors, save_hdf5])
def test_autoload_of_every_format(make_trainer, savefun):
    if savefun is save_hdf5:
        pytest.importorskip("h5py")
    run(make_trainer, extensions.snapshot(savefun), (3, "iteration"), (1, "iteration"))
    second = run(make_trainer, extensions.snapshot(autoload=True), (4, "iteration"))
    assert second.updater.iteration == second.get_extension("counter").value == 4


def test_autoload_deletes_what_a_killed_process_has_left(make_trainer, tmp_path):
    out = tmp_path / "result"
    out.mkdir()
    left = [".0123abcd.tmp.snapshot_iter_4", ".0123abcd.tmp..456789ef.tmp.snapshot_iter_4"]
    others = [".0123abcd.tmp.log", ".hidden", ".tmp.snapshot_iter_4"]
    for name in left + others:
        (out / name).touch()
    trainer = run(make_trainer, extensions.snapshot(autoload=True), trigger=(5, "iteration"))
    assert names(trainer) == sorted([*others, "snapshot_iter_5"])


def test_autoload_of_an_unreadable_file_names_it(make_trainer, tmp_path):
    out = tmp_path / "result"
    out.mkdir()
    (out / "snapshot_iter_5").write_bytes(b"PK\x03\x04 something")
    with pytest.raises(SerializationError, match="snapshot_iter_5"):
        run(make_trainer, extensions.snapshot(autoload=True))


def test_errors():
    with pytest.raises(TypeError, match="pass savefun or writer, not both"):
        extensions.snapshot(savefun=print, writer=Writer())
    for options in ({"n_retains": 1}, {"autoload": True}):
        with pytest.raises(TypeError, match="n_retains and autoload need a filename that is a"):
            extensions.snapshot(filename=lambda trainer: "a", **options)
    with pytest.raises(NotImplementedError, match="Writer does not implement __call__"):
        Writer()("a", "b", None)
