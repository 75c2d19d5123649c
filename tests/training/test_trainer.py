import contextlib
import functools
import io
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from mpchain import Variable, config, training, using_config
from mpchain.serializers import DictionarySerializer, NpzDeserializer, SerializationError
from mpchain.training import PRIORITY_EDITOR, PRIORITY_READER, PRIORITY_WRITER


class Recorder(training.Extension):
    """An extension that appends its calls to a list that it shares with other extensions."""

    def __init__(self, label, events, failing=()):
        self.label = label
        self.events = events
        self.failing = failing

    def _record(self, hook):
        self.events.append(f"{hook} {self.label}")
        if hook in self.failing:
            raise OSError(f"{hook} of {self.label} broke")

    def initialize(self, trainer):
        self._record("initialize")

    def __call__(self, trainer):
        self._record("call")

    def on_error(self, trainer, exc, tb):
        self._record("on_error")
        self.events.append((trainer, exc, tb))

    def finalize(self):
        self._record("finalize")


def test_order_of_calls(make_trainer):
    events = []
    trainer = make_trainer(
        (2, "iteration"), lambda updater: events.append(f"update {updater.iteration}")
    )
    trainer.extend(Recorder("reader", events), name="reader")
    trainer.extend(Recorder("late", events), name="late", priority=-100, call_before_training=True)
    trainer.extend(Recorder("writer", events), name="writer", priority=PRIORITY_WRITER)
    trainer.extend(Recorder("second reader", events), name="reader 2", trigger=(2, "iteration"))
    trainer.extend(lambda trainer: events.append("call editor"), "editor", None, PRIORITY_EDITOR)
    trainer.run()
    assert events == [
        "initialize writer",
        "initialize reader",
        "initialize second reader",
        "initialize late",
        "call late",
        "update 0",
        "call writer",
        "call editor",
        "call reader",
        "call late",
        "update 1",
        "call writer",
        "call editor",
        "call reader",
        "call second reader",
        "call late",
        "finalize writer",
        "finalize reader",
        "finalize second reader",
        "finalize late",
    ]
    assert trainer.updater.is_finalized


def raise_at(iteration, error):
    def on_update(updater):
        if updater.iteration == iteration:
            raise error

    return on_update


@pytest.mark.parametrize("error_class", [ValueError, KeyboardInterrupt, SystemExit])
def test_exception_reaches_every_extension_and_is_raised_again(make_trainer, error_class):
    events, error = [], error_class("broken")
    trainer = make_trainer(on_update=raise_at(2, error))
    for name in "ab":
        trainer.extend(Recorder(name, events), name, trigger=(100, "iteration"))
    with pytest.raises(error_class) as caught:
        trainer.run()
    assert caught.value is error
    report = (trainer, error, error.__traceback__)
    assert [event if isinstance(event, str) else event[:2] for event in events] == [
        *["initialize a", "initialize b"],
        *["on_error a", report[:2], "on_error b", report[:2]],
        *["finalize a", "finalize b"],
    ]
    assert all(event[2] is not None for event in events if isinstance(event, tuple))
    assert trainer.updater.is_finalized
    assert trainer.updater.iteration == 2


@pytest.mark.parametrize(
    ("number", "error_class", "code"),
    [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, SystemExit, 143)],
)
def test_a_signal_ends_training_after_the_iteration(make_trainer, capfd, number, error_class, code):
    handler, events = signal.getsignal(number), []

    def on_update(updater):
        if updater.iteration == 2:
            signal.raise_signal(number)

    trainer = make_trainer((100, "iteration"), on_update)
    trainer.extend(Recorder("a", events))
    assert not trainer.is_interrupted
    with pytest.raises(error_class) as caught:
        trainer.run()
    assert caught.value.code == code
    assert [event for event in events if isinstance(event, str)] == [
        *["initialize a", "call a", "call a", "call a", "on_error a", "finalize a"]
    ]
    assert trainer.updater.iteration == 3
    assert trainer.is_interrupted
    assert trainer.updater.is_finalized
    assert signal.getsignal(number) is handler
    out, err = capfd.readouterr()
    name = signal.Signals(number).name
    assert (out, err) == (
        "",
        f"{name}: finishing this iteration; send the signal again to stop immediately\n",
    )


@pytest.mark.parametrize(
    ("number", "error_class"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_the_second_signal_ends_training_at_once(make_trainer, number, error_class):
    def on_update(updater):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(number)
        raise AssertionError("not reached")

    trainer = make_trainer((100, "iteration"), on_update)
    with pytest.raises(error_class) as caught:
        trainer.run()
    assert type(caught.value) is error_class
    assert trainer.updater.iteration == 0
    assert not trainer.is_interrupted
    assert trainer.updater.is_finalized


def test_a_signal_before_the_first_iteration_and_in_the_last(make_trainer):
    for iteration, extension in [
        (0, training.make_extension(initializer=lambda t: signal.raise_signal(signal.SIGINT))),
        (4, training.make_extension(trigger=(4, "iteration"))),
    ]:
        trainer = make_trainer((4, "iteration"))
        trainer.extend(extension(lambda trainer: signal.raise_signal(signal.SIGINT)), "a")
        with pytest.raises(KeyboardInterrupt):
            trainer.run()
        assert trainer.updater.iteration == iteration


def test_a_signal_after_the_last_iteration_is_not_forgotten(make_trainer):
    events = []
    trainer = make_trainer((2, "iteration"))
    finalizer = training.make_extension(finalizer=lambda: signal.raise_signal(signal.SIGINT))
    trainer.extend(finalizer(lambda trainer: None), "a")
    trainer.extend(Recorder("b", events), "b")
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert events[-2:] == ["call b", "finalize b"]


def test_processes_agree_on_the_signal(make_trainer):
    trainer = make_trainer((100, "iteration"))
    noted = []

    def agree(number):
        noted.append(number)
        return signal.SIGTERM if trainer.updater.iteration == 3 else None

    trainer.updater.agree_on_signal = agree
    with pytest.raises(SystemExit) as caught:
        trainer.run()
    assert caught.value.code == 143
    assert noted == [None] * 4


@pytest.mark.slow
def test_an_uncaught_interruption_is_silent(tmp_path):
    program = (
        "import signal, sys\nfrom mpchain.training.interruption import Interruption\n"
        "with Interruption() as interruption:\n    signal.raise_signal(signal.SIGINT)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 130
    assert done.stderr.count(b"\n") == 1


def test_sigterm_handler_of_the_program_is_left_alone(make_trainer):
    received = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        trainer = make_trainer(
            (3, "iteration"), on_update=lambda updater: signal.raise_signal(signal.SIGTERM)
        )
        trainer.run()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert received == [signal.SIGTERM] * 3


def test_ctrl_c_handler_of_the_program_is_left_alone(make_trainer):
    received = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        make_trainer(
            (3, "iteration"), on_update=lambda updater: signal.raise_signal(signal.SIGINT)
        ).run()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert received == [signal.SIGINT] * 3


def test_training_in_a_thread(make_trainer):
    trainer = make_trainer()
    thread = threading.Thread(target=trainer.run)
    thread.start()
    thread.join()
    assert trainer.updater.is_finalized
    assert trainer.updater.iteration == 4


def test_failing_hooks_keep_neither_the_others_nor_the_exception_back(make_trainer):
    events, error = [], ValueError("broken")
    trainer = make_trainer(on_update=raise_at(1, error))
    trainer.extend(Recorder("a", events, failing=("on_error", "finalize")), "a")
    trainer.extend(Recorder("b", events), "b")
    with pytest.raises(ValueError) as caught:
        trainer.run()
    assert caught.value is error
    assert {"on_error a", "on_error b", "finalize a", "finalize b"} <= set(map(str, events))
    assert trainer.updater.is_finalized
    assert error.__notes__ == [
        "on_error of extension 'a' failed as well: OSError('on_error of a broke')",
        "finalize of extension 'a' failed as well: OSError('finalize of a broke')",
    ]


def test_failing_finalizers_without_another_exception(make_trainer):
    events = []
    trainer = make_trainer()
    for name in "abc":
        trainer.extend(Recorder(name, events, failing=("finalize",) if name != "b" else ()), name)
    with pytest.raises(OSError, match="finalize of a broke") as caught:
        trainer.run()
    assert events[-3:] == ["finalize a", "finalize b", "finalize c"]
    assert trainer.updater.is_finalized
    assert caught.value.__notes__ == [
        "finalize of extension 'c' failed as well: OSError('finalize of c broke')"
    ]


def test_failing_finalizer_while_the_caller_handles_another_exception(make_trainer):
    trainer = make_trainer()
    trainer.extend(Recorder("a", [], failing=("finalize",)))
    try:
        raise KeyError("handled by the caller")
    except KeyError:
        with pytest.raises(OSError, match="finalize of a broke"):
            trainer.run()


def test_failing_initialize_is_followed_by_finalize(make_trainer):
    events = []
    trainer = make_trainer()
    trainer.extend(Recorder("a", events, failing=("initialize",)))
    with pytest.raises(OSError, match="initialize of a broke"):
        trainer.run()
    assert events[0] == "initialize a"
    assert events[-1] == "finalize a"


@pytest.mark.parametrize("shown", [True, False])
def test_exception_is_announced_and_its_traceback_left_to_python(make_trainer, capsys, shown):
    trainer = make_trainer(on_update=raise_at(0, ValueError("broken")))
    trainer.extend(lambda trainer: None, "a")
    with pytest.raises(ValueError):
        trainer.run(show_loop_exception_msg=shown)
    printed = capsys.readouterr().err
    assert ("Exception in the training loop: ValueError: broken" in printed) == shown
    assert "Traceback" not in printed


def test_finalizer_that_hangs_does_not_hide_the_traceback(make_trainer, monkeypatch):
    printed = threading.Event()

    class Errors(io.StringIO):
        def write(self, text):
            if "in on_update" in text:
                printed.set()
            return super().write(text)

    monkeypatch.setattr("mpchain.training.trainer.TIME_TO_FINALIZE", 0.01)

    class Hangs(training.Extension):
        def __call__(self, trainer):
            pass

        def finalize(self):
            printed.wait(30)

    trainer = make_trainer(on_update=raise_at(0, ValueError("broken")))
    trainer.extend(Hangs())
    with contextlib.redirect_stderr(Errors()), pytest.raises(ValueError, match="broken"):
        trainer.run()
    assert printed.is_set()


def test_second_run_raises(make_trainer):
    trainer = make_trainer()
    trainer.run()
    with pytest.raises(RuntimeError, match=r"Trainer\.run: a trainer runs only once"):
        trainer.run()


def test_out_folder_is_created(make_trainer, tmp_path):
    make_trainer(out=tmp_path / "a" / "b").run()
    assert (tmp_path / "a" / "b").is_dir()


def test_without_stop_trigger_training_goes_on(make_trainer):
    trainer = make_trainer(None, raise_at(50, StopAsyncIteration()))
    with pytest.raises(StopAsyncIteration):
        trainer.run(show_loop_exception_msg=False)
    assert trainer.updater.iteration == 50


def test_is_before_training(make_trainer):
    seen = []
    trainer = make_trainer((1, "iteration"))
    trainer.extend(lambda trainer: seen.append(trainer.is_before_training), "a", None, None,
                   call_before_training=True)  # fmt: skip
    trainer.run()
    assert seen == [True, False]


def test_names(make_trainer):
    def drop(trainer):
        pass

    @training.make_extension(default_name="decorated")
    def other(trainer):
        pass

    trainer = make_trainer()
    first, second, third = (Recorder(label, []) for label in "abc")
    for extension in (first, second, third, drop, other):
        trainer.extend(extension)
    trainer.extend(drop, name="mine")
    assert [first.name, second.name, third.name] == ["Recorder", "Recorder_1", "Recorder_2"]
    assert trainer.get_extension("Recorder_1") is second
    assert trainer.get_extension("drop") is trainer.get_extension("mine") is drop
    assert trainer.get_extension("decorated") is other


def test_make_extension_sets_every_attribute(make_trainer):
    events = []

    @training.make_extension(
        trigger=(2, "iteration"),
        priority=PRIORITY_WRITER,
        initializer=lambda trainer: events.append("initialize"),
        finalizer=lambda: events.append("finalize"),
        on_error=lambda trainer, exc, tb: events.append(f"on_error {exc}"),
    )
    def extension(trainer):
        events.append(trainer.updater.iteration)

    trainer = make_trainer((9, "iteration"), raise_at(5, ValueError("broken")))
    trainer.extend(lambda trainer: events.append("reader"), "reader", (4, "iteration"))
    trainer.extend(extension)
    with pytest.raises(ValueError):
        trainer.run(show_loop_exception_msg=False)
    assert events == ["initialize", 2, 4, "reader", "on_error broken", "finalize"]
    assert training.make_extension()(lambda trainer: None).priority == PRIORITY_READER


def test_trigger_of_extend_comes_before_that_of_the_extension(make_trainer):
    calls = []
    extension = training.make_extension(trigger=(1, "iteration"))(
        lambda trainer: calls.append(trainer.updater.iteration)
    )
    trainer = make_trainer()
    trainer.extend(extension, trigger=(3, "iteration"))
    trainer.run()
    assert calls == [3]


def test_without_any_trigger_and_priority_an_extension_is_called_each_iteration(make_trainer):
    class Plain(Recorder):
        trigger = None
        priority = None

    trainer = make_trainer((2, "iteration"))
    trainer.extend(Recorder("reader", events := []), "reader")
    trainer.extend(Plain("plain", events))
    trainer.run()
    assert [event for event in events if "call" in event] == ["call reader", "call plain"] * 2


def test_extensions_argument(make_trainer):
    trainer = make_trainer(extensions=[Recorder("a", [])])
    assert trainer.get_extension("Recorder").label == "a"


@pytest.mark.parametrize(
    ("extension", "options", "error", "message"),
    [
        (3, {}, TypeError, "Trainer.extend: extension must be callable, not 3"),
        (Recorder, {}, TypeError, r"not the class Recorder; write Recorder\(...\)"),
        (functools.partial(print), {}, ValueError, "has no name; pass name="),
        (print, {"name": "training"}, ValueError, "must not be named 'training'"),
        (print, {"trigger": 5}, TypeError, "trigger must be .* not 5"),
        (print, {"trigger": (1, "day")}, ValueError, "unit must be .* not 'day'"),
    ],
)
def test_wrong_extension(make_trainer, extension, options, error, message):
    with pytest.raises(error, match=message):
        make_trainer().extend(extension, **options)


def test_extension_is_a_base_class(make_trainer):
    class Nothing(training.Extension):
        pass

    trainer = make_trainer(extensions=[Nothing()])
    with pytest.raises(NotImplementedError, match="Nothing does not implement __call__"):
        trainer.run(show_loop_exception_msg=False)


def test_unknown_extension_name(make_trainer):
    trainer = make_trainer(extensions=[Recorder("a", [])])
    with pytest.raises(ValueError, match="no extension named 'log'; known: 'Recorder'"):
        trainer.get_extension("log")


@pytest.mark.parametrize(
    ("stop_trigger", "error", "message"),
    [
        (10, TypeError, "get_trigger: trigger must be .* not 10"),
        ((10,), TypeError, r"not \(10,\)"),
        (("10", "epoch"), ValueError, "period must be a number greater than 0, not '10'"),
        ((0, "epoch"), ValueError, "not 0"),
        ((10, "epochs"), ValueError, "unit must be 'epoch' or 'iteration', not 'epochs'"),
    ],
)
def test_wrong_stop_trigger(make_trainer, stop_trigger, error, message):
    with pytest.raises(error, match=message):
        make_trainer(stop_trigger)


def resume(trainer, other):
    serializer = DictionarySerializer()
    serializer.save(trainer)
    NpzDeserializer(serializer.target).load(other)
    return other


def test_resume_goes_on_to_the_same_end(make_trainer):
    first = make_trainer((2, "epoch"))
    first.run()
    assert first.updater.iteration == 5
    second = resume(first, make_trainer((4, "epoch")))
    assert not second.is_before_training
    second.run()
    assert second.updater.iteration == 10


@pytest.mark.parametrize("stop_trigger", [(2, "epoch"), (1, "epoch"), (3, "iteration")])
def test_resume_of_a_finished_training_stops_at_once(make_trainer, stop_trigger):
    first = make_trainer((2, "epoch"))
    first.run()
    second = resume(first, make_trainer(stop_trigger))
    second.run()
    assert second.updater.iteration == first.updater.iteration


def test_a_stop_trigger_sees_the_iteration_that_the_snapshot_ended_with(make_trainer):
    def train(length, state=None):
        seen = []

        def stop(trainer):
            seen.append(dict(trainer.observation))
            return trainer.updater.iteration == length

        def observe(trainer):
            i = trainer.updater.iteration
            trainer.observation.update(
                x=np.float32(0.1) * i, v=Variable(np.array(i / 3)), weighted=(0.1 * i, 3), n=i
            )
            trainer.observation.update(text="a", array=np.zeros(2), wrong=("a", 3))

        trainer = make_trainer(stop)
        trainer.extend(observe, priority=PRIORITY_WRITER)
        states = []
        trainer.extend(lambda trainer: states.append(saved(trainer)), "save", priority=-1)
        if state is not None:
            NpzDeserializer(state).load(trainer)
        trainer.run()
        return seen, states

    seen, states = train(4)
    resumed, _ = train(4, states[1])
    i = 2
    assert resumed[0] == {"x": float(np.float32(0.1) * 2), "v": i / 3, "weighted": (0.2, 3), "n": 2}
    assert [entry["x"] for entry in resumed] == [float(entry["x"]) for entry in seen[2:]]


def saved(trainer):
    serializer = DictionarySerializer()
    serializer.save(trainer)
    return {key: np.array(value) for key, value in serializer.target.items()}


def test_extensions_after_the_snapshot_have_their_turn_when_it_is_resumed(make_trainer):
    def train(state=None):
        calls, states = [], []

        def call(trainer):
            calls.append((trainer.updater.iteration, trainer.observation["x"]))

        def observe(trainer):
            trainer.observation["x"] = trainer.updater.iteration / 7

        trainer = make_trainer((6, "iteration"))
        trainer.extend(observe, priority=PRIORITY_WRITER)
        trainer.extend(lambda trainer: states.append(saved(trainer)), "save", priority=-100)
        trainer.extend(call, "after", trigger=(2, "iteration"), priority=-100)
        if state is not None:
            NpzDeserializer(state).load(trainer)
        trainer.run()
        return calls, states

    calls, states = train()
    assert calls == [(i, i / 7) for i in (2, 4, 6)]
    for i, state in enumerate(states):
        resumed, later = train(state)
        assert resumed == [call for call in calls if call[0] > i]
        assert len(later) == 5 - i


@pytest.mark.parametrize("rng", [None, np.random.RandomState, np.random.default_rng, *[
    functools.partial(lambda kind, seed: np.random.Generator(kind(seed)), kind)
    for kind in (np.random.MT19937, np.random.Philox, np.random.SFC64, np.random.PCG64DXSM)
]])  # fmt: skip
def test_random_generators_go_on_where_the_snapshot_was_taken(make_trainer, rng):
    def train(seed, state=None):
        drawn, states = [], []

        def draw(trainer):
            own = 0 if config.rng is None else config.rng.normal()
            drawn.append((np.random.normal(), random.gauss(0, 1), own))

        np.random.seed(seed)
        random.seed(seed)
        with using_config("rng", rng and rng(seed)):
            trainer = make_trainer((5, "iteration"))
            trainer.extend(draw, priority=PRIORITY_WRITER)
            trainer.extend(lambda trainer: states.append(saved(trainer)), "save", priority=-100)
            if state is not None:
                NpzDeserializer(state).load(trainer)
                np.random.normal()
            trainer.run()
        return drawn, states

    drawn, states = train(0)
    assert train(1, states[1])[0] == drawn[2:]
    assert len(set(drawn)) == 5


def test_another_kind_of_generator_is_an_error(make_trainer):
    with using_config("rng", np.random.default_rng(0)):
        state = saved(make_trainer())
    with using_config("rng", np.random.RandomState(0)):
        NpzDeserializer(state).load(trainer := make_trainer())
        with pytest.raises(SerializationError, match=r"is a MT19937, but the snapshot has a PCG64"):
            trainer.run(show_loop_exception_msg=False)
    NpzDeserializer(state).load(trainer := make_trainer())
    trainer.run()


def test_a_file_of_chainer_has_no_random_states(make_trainer):
    state = saved(make_trainer())
    ours = {key for key in state if key.startswith(("_random/", "_observation", "_outstanding"))}
    assert ours == {f"_random/{name}" for name in ("numpy", "python", "config", "cupy")} | {
        *["_observation", "_outstanding"]
    }
    other = make_trainer()
    NpzDeserializer({key: value for key, value in state.items() if key not in ours}).load(other)
    other.run()


def test_elapsed_time_survives_resume(make_trainer, clock):
    take_long = lambda updater: clock.sleep(10)
    first = make_trainer((1, "iteration"), take_long)
    assert first.elapsed_time == 0
    first.run()
    assert first.elapsed_time == 10
    second = resume(first, make_trainer((2, "iteration"), take_long))
    assert second.elapsed_time == 10
    second.run()
    assert second.elapsed_time == 20
