import errno
import os
import signal
import sys

import numpy as np
import pytest

from mpchain.serializers import (
    DamagedFileError,
    MissingKeyError,
    SerializationError,
    load_npz,
    save_hdf5,
    save_npz,
    save_safetensors,
)
from mpchain.serializers.npz import read_npz, write_npz
from mpchain.training import extensions
from mpchain.training.extensions import SimpleWriter, Writer

pytestmark = pytest.mark.slow

snapshot_module = sys.modules["mpchain.training.extensions.snapshot"]


class Counter:
    """An object that saves one value."""

    def __init__(self, value=0):
        self.value = value

    def __call__(self, trainer):
        self.value += 1

    def serialize(self, serializer):
        self.value = serializer("value", self.value)


def names(trainer):
    """Returns the names of the files that are not hidden."""
    return sorted(path.name for path in trainer.out.iterdir() if path.name[0] != ".")


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
    assert capsys.readouterr().out == f"resuming from {path}\n"
    assert second.updater.iteration == 13
    assert second.get_extension("counter").value == 13
    assert second.elapsed_time > first.elapsed_time


@pytest.mark.parametrize(
    ("template", "seconds", "expected"),
    [("at_{.updater.iteration}", (3, 2, 1), 10), ("at_{.updater.iteration}", (1, 9, 5), 10),
     ("at_{0.updater.iteration:01d}", (3, 2, 1), 10), ("at_{.updater.epoch}", (3, 2, 1), 10),
     ("at_{.observation[loss]}", (1, 2, 3), 10), ("at_{.observation[loss]}", (3, 2, 1), 2),
     ("at_{.observation[loss]}", (5, 5, 5), 10)],
)  # fmt: skip
def test_latest_is_by_iteration_or_epoch_and_else_by_time(
    make_trainer, template, seconds, expected
):
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
        extensions.snapshot_object(counter, template, autoload=True, condition=lambda: False),
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


@pytest.mark.parametrize("autoload", [True, False])
def test_what_a_killed_process_has_left_is_deleted(make_trainer, tmp_path, autoload):
    out = tmp_path / "result"
    out.mkdir()
    left = [".0123abcd.tmp.snapshot_iter_4", ".0123abcd.tmp..456789ef.tmp.snapshot_iter_4"]
    left += [".0123abcd.tmp..snapshot_iter_iteration.index"]
    others = [".0123abcd.tmp.log", ".hidden", ".tmp.snapshot_iter_4"]
    for name in left + others:
        (out / name).touch()
    run(make_trainer, extensions.snapshot(autoload=autoload), trigger=(5, "iteration"))
    assert sorted(os.listdir(out)) == sorted([*others, "snapshot_iter_5"])


# Damaged files


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "cut":
        del content[len(content) // 2 :]
    elif how == "empty":
        content.clear()
    else:
        at = content.index(b"value.npy") + 200  # this position is in the content of an array
        content[at : at + 8] = b"damaged!"
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("key", "lie"),
    [
        ("_outstanding", "5"),
        ("_observation", "[]"),
        ("extensions/LogReport/_log", "{}"),
        ("extensions/LogReport/_log", "[5]"),
    ],
)
def test_a_snapshot_that_lies_is_named(make_trainer, tmp_path, key, lie):
    trainer = make_trainer((2, "iteration"))
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    trainer.run()
    save_npz(tmp_path / "state", trainer)
    arrays = read_npz(tmp_path / "state")
    assert key in arrays
    write_npz(tmp_path / "state", arrays | {key: np.array(lie)})
    trainer = make_trainer((4, "iteration"))
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    with pytest.raises(SerializationError, match=rf"state: '{key}' cannot be restored"):
        load_npz(tmp_path / "state", trainer)


@pytest.mark.parametrize("how", ["cut", "empty", "changed"])
def test_a_damaged_snapshot_is_passed_over(make_trainer, tmp_path, how):
    every = (1, "iteration")
    run(make_trainer, extensions.snapshot(), (4, "iteration"), every)
    damage(tmp_path / "result" / "snapshot_iter_4", how)
    damage(tmp_path / "result" / "snapshot_iter_3", how)
    with pytest.warns(RuntimeWarning) as caught:
        second = run(make_trainer, extensions.snapshot(autoload=True), (5, "iteration"), every)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    assert "result/snapshot_iter_4" in texts[0]
    assert "result/snapshot_iter_3" in texts[1]
    assert all("skipping" in text for text in texts)
    assert second.updater.iteration == second.get_extension("counter").value == 5
    assert names(second) == [f"snapshot_iter_{i}" for i in range(1, 6)]
    load_npz(tmp_path / "result" / "snapshot_iter_4", make_trainer(), strict=False)


def test_training_does_not_begin_where_all_snapshots_are_damaged(make_trainer, tmp_path):
    run(make_trainer, extensions.snapshot())
    for iteration in (3, 5):
        damage(tmp_path / "result" / f"snapshot_iter_{iteration}", "cut")
    updates = []
    with (
        pytest.warns(RuntimeWarning, match=r"skipping .*snapshot_iter_\d"),
        pytest.raises(DamagedFileError, match=f"all 2 snapshots in {tmp_path}/result are dam"),
    ):
        run(make_trainer, extensions.snapshot(autoload=True), on_update=updates.append)
    assert not updates
    assert sorted(os.listdir(tmp_path / "result")) == ["snapshot_iter_3", "snapshot_iter_5"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ESTALE, errno.EACCES])
def test_an_error_of_the_system_is_not_taken_for_damage(make_trainer, monkeypatch, number):
    run(make_trainer, extensions.snapshot())

    def fail(path, target):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(snapshot_module, "load_npz", fail)
    with pytest.raises(OSError, match=f"{os.strerror(number)}.*snapshot_iter_5"):
        run(make_trainer, extensions.snapshot(autoload=True))


def test_a_snapshot_that_does_not_fit_is_not_passed_over(make_trainer, tmp_path):
    run(make_trainer, extensions.snapshot())
    other = make_trainer()
    other.extend(Counter(), "another counter")
    other.extend(extensions.snapshot(autoload=True))
    with pytest.raises(MissingKeyError, match=r"snapshot_iter_5.*extensions/another counter/value"):
        other.run()


# Several runs in one folder


def test_retention_does_not_depend_on_the_clock(make_trainer, tmp_path):
    """The clock goes back, so the last written file has the oldest time."""
    times = iter(range(10**9, 0, -1000))

    class Clock(SimpleWriter):
        def __call__(self, filename, outdir, target):
            super().__call__(filename, outdir, target)
            seconds = next(times)
            os.utime(os.path.join(outdir, filename), (seconds, seconds))

    every = (1, "iteration")
    for n_iterations in (3, 5):  # the second run resumes from the first
        extension = extensions.snapshot(writer=Clock(), n_retains=1, autoload=True)
        trainer = run(make_trainer, extension, (n_iterations, "iteration"), every)
        assert trainer.updater.iteration == n_iterations
        assert names(trainer) == [f"snapshot_iter_{n_iterations}"]


def test_retention_leaves_the_snapshots_of_an_earlier_run(make_trainer, capsys):
    first = run(make_trainer, extensions.snapshot(n_retains=2), (9, "iteration"), (4, "iteration"))
    assert names(first) == ["snapshot_iter_4", "snapshot_iter_8"]
    content = (first.out / "snapshot_iter_4").read_bytes()
    assert capsys.readouterr().out == ""
    extension = extensions.snapshot(n_retains=2)
    second = run(make_trainer, extension, (7, "iteration"), (1, "iteration"))
    expected = ["snapshot_iter_4.old1", "snapshot_iter_6", "snapshot_iter_7", "snapshot_iter_8"]
    assert names(second) == expected
    assert (first.out / "snapshot_iter_4.old1").read_bytes() == content
    path = first.out / "snapshot_iter_4"
    assert capsys.readouterr().out == f"renamed existing {path} to {path}.old1\n"
    third = run(make_trainer, extensions.snapshot(autoload=True), (9, "iteration"))
    assert third.updater.iteration == 9
    assert f"resuming from {first.out}/snapshot_iter_8\n" in capsys.readouterr().out


def test_snapshots_of_one_name_of_earlier_runs_are_kept(make_trainer):
    for value in (1, 2, 3):
        extension = extensions.snapshot_object(Counter(value), "model.npz")
        trainer = run(make_trainer, extension)
    assert names(trainer) == ["model.npz", "model.old1.npz", "model.old2.npz"]
    for name, value in (("model.npz", 3), ("model.old1.npz", 1), ("model.old2.npz", 2)):
        load_npz(trainer.out / name, counter := Counter())
        assert counter.value == value


@pytest.mark.parametrize("how", ["autoload", "load_npz"])
def test_retention_counts_what_the_resumed_run_has_written(make_trainer, tmp_path, how):
    every = (1, "iteration")
    run(make_trainer, extensions.snapshot(n_retains=2), (4, "iteration"), every)
    (tmp_path / "result" / "snapshot_iter_1").touch()  # another program wrote this file
    trainer = make_trainer((6, "iteration"))
    trainer.extend(Counter(), "counter")
    trainer.extend(extensions.snapshot(n_retains=2, autoload=how == "autoload"), trigger=every)
    if how == "load_npz":
        load_npz(tmp_path / "result" / "snapshot_iter_4", trainer)
    trainer.run()
    assert names(trainer) == ["snapshot_iter_1", "snapshot_iter_5", "snapshot_iter_6"]


def test_retention_keeps_what_was_written_last_after_going_back(make_trainer, tmp_path):
    every = (1, "iteration")
    run(make_trainer, extensions.snapshot(n_retains=3), (6, "iteration"), every)
    trainer = make_trainer((5, "iteration"))
    trainer.extend(Counter(), "counter")
    trainer.extend(extensions.snapshot(n_retains=1), trigger=every)
    load_npz(tmp_path / "result" / "snapshot_iter_4", trainer)
    trainer.run()
    assert names(trainer) == ["snapshot_iter_5"]
    assert trainer.get_extension("counter").value == 5


def test_retention_in_a_folder_to_which_a_snapshot_was_copied(make_trainer, tmp_path):
    """The run has the same identity, but another folder, so the files there are not its own."""
    run(make_trainer, extensions.snapshot(n_retains=2), (4, "iteration"), (1, "iteration"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "snapshot_iter_3").touch()
    trainer = make_trainer((6, "iteration"), out=other)
    trainer.extend(Counter(), "counter")
    trainer.extend(extensions.snapshot(n_retains=1), trigger=(1, "iteration"))
    load_npz(tmp_path / "result" / "snapshot_iter_4", trainer)
    trainer.run()
    assert names(trainer) == ["snapshot_iter_3", "snapshot_iter_6"]


@pytest.mark.parametrize("content", ["", "[", "{}", "[1]", "null", '[["a"]]'])
def test_where_it_is_not_known_what_is_whose_nothing_is_deleted(make_trainer, tmp_path, content):
    every = (1, "iteration")
    first = run(make_trainer, extensions.snapshot(n_retains=2), (4, "iteration"), every)
    (index,) = first.out.glob(".*.index")
    index.write_text(content)
    extension = extensions.snapshot(n_retains=1, autoload=True)
    second = run(make_trainer, extension, (6, "iteration"), every)
    assert names(second) == ["snapshot_iter_3", "snapshot_iter_4", "snapshot_iter_6"]


def test_the_index_has_a_name_without_fields(make_trainer):
    trainer = run(make_trainer, extensions.snapshot(n_retains=2), (4, "iteration"))
    hidden = [path.name for path in trainer.out.iterdir() if path.name.startswith(".")]
    assert hidden == [".snapshot_iter_iteration.index"]


def test_an_index_of_the_former_name_is_read_and_replaced(make_trainer, tmp_path):
    every = (1, "iteration")
    first = run(make_trainer, extensions.snapshot(n_retains=2), (4, "iteration"), every)
    former = first.out / ".snapshot_iter_{.updater.iteration}.index"
    (first.out / ".snapshot_iter_iteration.index").rename(former)
    extension = extensions.snapshot(n_retains=1, autoload=True)
    second = run(make_trainer, extension, (6, "iteration"), every)
    assert names(second) == ["snapshot_iter_6"] and not former.exists()


def test_errors():
    with pytest.raises(TypeError, match="pass savefun or writer, not both"):
        extensions.snapshot(savefun=print, writer=Writer())
    for options in ({"n_retains": 1}, {"autoload": True}):
        with pytest.raises(TypeError, match="filename must be a string with n_retains or autoload"):
            extensions.snapshot(filename=lambda trainer: "a", **options)
    with pytest.raises(NotImplementedError, match="Writer does not implement __call__"):
        Writer()("a", "b", None)
