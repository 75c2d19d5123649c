import gc
import json
import threading

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import function_hooks, iterators, observers, optimizers, profiling, training
from mpchain.dataset import concat_examples
from mpchain.profiling import clocks, recorder
from mpchain.training import extensions
from tests.profiling import chrome_format

X = np.ones((4, 3), np.float32)


class Encoder(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1, self.l2 = L.Linear(3, 5), L.Linear(5, 3)


class Model(mpchain.Chain):
    """A model that calls the links of an encoder, but not the encoder itself."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.encoder, self.last = Encoder(), L.Linear(3, 2)

    def forward(self, x):
        return self.last(self.encoder.l2(F.relu(self.encoder.l1(x))))


@pytest.fixture
def ticking(clock):
    """Makes the clock advance by a microsecond at each reading."""
    clock.step = 1e-6


def is_anything_observed():
    """Returns whether an observer or hook is active."""
    return observers.current.observers is not None or bool(mpchain.get_function_hooks())


def names(profile, phase):
    return {row.name for row in profile.rows() if row.phase == phase}


CALLS = {
    "convolution_2d": lambda x: F.convolution_2d(x, x, np.zeros(2)),
    "deconvolution_2d": lambda x: F.deconvolution_2d(x, x),
    "max_pooling_2d": lambda x: F.max_pooling_2d(x, 2),
    "linear": lambda x: F.linear(x, F.reshape(x, (2, 18)), np.zeros(2)),
    "softmax_cross_entropy": lambda x: F.softmax_cross_entropy(x, np.zeros((2, 3, 3), np.int32)),
    "dropout": F.dropout,
    "layer_normalization": lambda x: F.layer_normalization(
        F.reshape(x, (2, 18)), np.ones(18), np.ones(18)
    ),
    "lstm": lambda x: F.lstm(np.zeros((2, 2)), F.reshape(x, (4, 9))[:2, :8]),
    "concat": lambda x: F.concat([x, x]),
    "relu": F.relu,
    "add": lambda x: x + x,
    "matmul": lambda x: x @ x,
    "reshape": lambda x: x.reshape(36),
    "exp": np.exp,
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_have_the_names_that_users_call(name):
    x = mpchain.Variable(np.random.RandomState(0).randn(2, 2, 3, 3))
    with mpchain.profile() as profile:
        ys = CALLS[name](x)
        y = ys[0] if isinstance(ys, tuple) else ys
        y.grad = np.ones_like(y.array)
        y.backward()
    assert name in names(profile, "forward") & names(profile, "backward")
    functions = {e["name"] for e in profile.trace["traceEvents"] if e.get("cat") == "function"}
    assert functions <= {name, "reshape", "get_item"}


def test_functions_that_a_user_hands_over_have_their_own_names():
    with mpchain.profile() as profile:
        y = F.forget(lambda x: F.relu(F.linear(x, X[:2])), mpchain.Variable(X))
    assert y.shape == (4, 2) and {"linear", "relu"} <= names(profile, "forward")


def test_public_functions_within_others():
    with mpchain.profile() as profile:
        with pytest.raises(ValueError, match="linear"):
            F.linear(X, np.ones((2, 5), np.float32))
        F.relu(L.Linear(3, 2)(X))
        F.mean_squared_error(X, X)
    assert names(profile, "forward") == {"Linear", "linear", "relu", "mean_squared_error"}


def test_times_are_by_the_path_of_the_link():
    optimizer = optimizers.SGD().setup(Model())
    with mpchain.profile() as profile:
        optimizer.update(lambda: F.sum(optimizer.target(X)))
    for phase in ("forward", "backward"):
        found = {(r.link, r.name) for r in profile.rows() if r.phase == phase and r.link}
        expected = {("/encoder/l1", "linear"), ("/encoder/l2", "linear"), ("/last", "linear")}
        assert expected | {("/", "relu")} <= found
        assert ("", "sum") in {(r.link, r.name) for r in profile.rows() if r.phase == phase}


def test_paths_of_two_models_begin_with_their_classes():
    with mpchain.profile() as profile:
        for model in (Model(), L.Linear(3, 2)):
            model(X)
    links = {row.link for row in profile.rows()}
    assert {"Model:/encoder/l1", "Linear:/"} <= links


def test_parts_add_up_to_the_step(ticking):
    optimizer = optimizers.Adam().setup(Model())
    data = iterators.SerialIterator([x for x in X], 2)
    with mpchain.profile() as profile:
        for _ in range(4):
            x = concat_examples(data.next())
            optimizer.update(lambda x: F.sum(optimizer.target(x)), x)
    steps = [e for e in profile.trace["traceEvents"] if e.get("cat") == "step"]
    assert [e["args"]["step"] for e in steps] == [1, 2, 3, 4]
    total = sum(row.mean for row in profile.rows())
    assert total == pytest.approx(np.mean([e["dur"] for e in steps[1:]]) * 1e-6)
    (rest,) = (row for row in profile.rows() if row.phase == "other")
    # The clock advances once before each of three parts (the iterator, the converter and the
    # optimizer, which calls forward and backward), and once after the last part.
    assert rest.mean == pytest.approx(4e-6 - 1e-9)
    assert {r.phase for r in profile.rows()} == {
        "input",
        "forward",
        "backward",
        "optimizer",
        "other",
    }
    assert profile.rows(step=3) and profile.rows(step=5) == []


def test_nothing_is_observed_without_a_profile():
    F.exp(X)  # the function's text is written at its first call
    code = F.exp.__code__
    assert not is_anything_observed()
    with mpchain.profile():
        assert is_anything_observed() and F.exp.__code__ is code
    assert not is_anything_observed()
    with pytest.raises(ZeroDivisionError), mpchain.profile():
        1 / 0
    assert not is_anything_observed() and not mpchain.config.link_hooks


def test_spans_are_no_work_for_the_garbage_collector():
    link = L.Linear(3, 2)

    def run(n):
        for _ in range(n):
            F.sum(link(X)).backward()
        gc.collect()
        return len(gc.get_objects())

    with mpchain.profile() as profile:
        before = run(1)
        assert run(100) - before < 50
    assert sum(e.get("cat") == "function" for e in profile.trace["traceEvents"]) >= 400


def test_recording_ends_after_the_given_steps():
    optimizer = optimizers.SGD().setup(Model())
    with mpchain.profile(skip=2, steps=3) as profile:
        for i in range(7):
            optimizer.update(lambda: F.sum(optimizer.target(X)))
            assert is_anything_observed() == (i < 4)
    steps = [e["args"]["step"] for e in profile.trace["traceEvents"] if e.get("cat") == "step"]
    assert steps == [3, 4, 5]
    assert any(event["ph"] == "C" for event in profile.trace["traceEvents"])


@pytest.mark.parametrize("arguments", [{"skip": -1}, {"steps": 0}])
def test_wrong_numbers_of_steps(arguments):
    with pytest.raises(ValueError, match="skip must not be negative, and steps must be"):
        mpchain.profile(**arguments)


def test_one_profile_at_a_time():
    with mpchain.profile(), pytest.raises(RuntimeError, match="another profile is active"):
        mpchain.profile().__enter__()
    with mpchain.profile() as profile:
        with pytest.raises(RuntimeError, match="has not ended"):
            profile.rows()


def test_what_raises_leaves_later_times_right():
    model = Model()
    with mpchain.profile() as profile:
        with pytest.raises(mpchain.utils.type_check.InvalidType):
            model(np.ones((4, 8), np.float32))
        F.exp(X)
        model(X)
    links = [link for link in profile.trace["traceEvents"] if link.get("cat") == "link"]
    assert [e["name"] for e in links if e["args"]["link"] == "/"] == ["/ (Model)"]
    assert all(event.get("dur", 0) >= 0 for event in profile.trace["traceEvents"])


def test_other_hooks_see_what_they_see_without_a_profile():
    model, own, seen = L.Linear(3, 2), function_hooks.TimerHook(), function_hooks.TimerHook()
    with mpchain.profile() as profile, seen:
        y = F.sum(model(X))
        y.creator_node.add_hook(own)
        y.backward()
    forward = ["linear_with_bias", "sum"]
    assert [name for name, _ in seen.call_history] == [*forward, *reversed(forward)]
    assert [name for name, _ in own.call_history] == ["sum"]
    assert {"linear", "sum"} <= names(profile, "backward")


def test_other_threads_are_not_recorded():
    with mpchain.profile() as profile:
        thread = threading.Thread(target=lambda: F.sum(L.Linear(3, 2)(X)).backward())
        thread.start()
        thread.join(60)
    assert not thread.is_alive() and profile.rows() == []


def test_a_trainers_iterations_are_the_steps(tmp_path):
    model = L.Classifier(L.Linear(3, 2), lossfun=F.softmax_cross_entropy)
    data = [(x, np.int32(0)) for x in X]
    updater = training.StandardUpdater(
        iterators.SerialIterator(data, 2), optimizers.SGD().setup(model)
    )
    trainer = training.Trainer(updater, (3, "epoch"), out=tmp_path)
    trainer.extend(extensions.Evaluator(iterators.SerialIterator(data, 2, repeat=False), model))
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    profile = mpchain.profile()
    trainer.extend(profile)
    trainer.run()
    events = chrome_format.parse(tmp_path / "trace.json")
    assert [e["args"]["step"] for e in events if e.get("cat") == "step"] == [1, 2, 3, 4, 5, 6]
    names_of = {phase: names(profile, phase) for phase in profiling.table.PHASES}
    assert {"iterator", "converter"} == names_of["input"]
    assert {"iterator", "converter", "linear", "evaluation"} <= names_of["evaluation"]
    assert {"LogReport", "extensions"} <= names_of["extensions"]
    assert {e["name"] for e in events if e["ph"] == "C"} == {"memory (MiB)"}
    text = (tmp_path / "trace.txt").read_text("utf-8")
    assert text.startswith("1 rank, steps 2 to 6, ")
    assert "memory at its peak" in text
    # The table omits rows with little time, such as the link beside slow extensions.
    assert any(e["name"].startswith("/predictor") for e in events)


def test_files_follow_the_format(tmp_path):
    with mpchain.profile(tmp_path / "p.json") as profile, profile.span("mine"):
        F.sum(Model()(mpchain.Variable(X))).backward()
    events = chrome_format.parse(tmp_path / "p.json")
    assert profiling.trace.read(tmp_path / "p.json") == profile.trace
    assert {"mine", "/encoder/l1 (Linear)"} <= {e["name"] for e in events}
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(ValueError, match=r"other.json is not a trace of mpchain.profile"):
        profiling.trace.read(tmp_path / "other.json")


def test_functions_show_their_inputs():
    with mpchain.profile() as profile:
        y = F.sum(F.linear(mpchain.Variable(X), np.ones((2, 3), np.float32)))
        y.backward()
        F.exp(X[:2])
    functions = [e for e in profile.trace["traceEvents"] if e.get("cat") == "function"]
    inputs = [(e["name"], e["args"]["inputs"]) for e in functions]
    expected = ("linear", "float32 (4, 3), float32 (2, 3)")
    assert inputs.count(expected) == 2  # one is forward, the other backward
    assert ("exp", "float32 (2, 3)") in inputs


def test_short_rows_are_added_up(ticking):
    with mpchain.profile() as profile:
        for i in range(250):
            with profile.span("long" if i < 249 else "short"):
                pass
        with profile.span("short, too"):
            pass
    shown = [line.split() for line in profiling.table.lines(profile.trace)]
    assert ["others", "2", "other", "rows", "2", "0.002", "0.8", "%"] in shown
    assert not any("short" in line for line in shown)
    few = [line.split()[-5:] for line in profiling.table.lines(profile.trace, n_rows=2)]
    assert ["rows", "1", "0.001", "0.4", "%"] in few


def test_the_last_rank_takes_the_files_of_a_run_together(tmp_path):
    path = str(tmp_path / "trace.json")

    def write(rank, run):
        part = profiling.trace.trace_of(recorder.Recorder(), clocks.own_clock(), rank, 2, run)
        profiling.trace.write(part, profiling.trace.path_of_rank(path, rank))

    write(1, "earlier run")
    write(0, "this run")
    assert profiling.trace.merge_files(path, "this run") is None
    write(1, "this run")
    merged = profiling.trace.merge_files(path, "this run")
    assert [about["rank"] for about in merged["otherData"]["ranks"]] == [0, 1]
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_drifts():
    clock = clocks.Clock(10_000, [(0, 5_000, 40), (100_000, 6_000, 30)])
    assert clock.shared(50_000) == (50_000 + 5_500 - 10_000) / 1000
    assert clock.error == 40


@pytest.mark.annex("compat")
def test_names_under_compat():
    """Hooks see Chainer's function classes there, which must not hide links and names."""
    from mpchain.compat import function_classes

    function_classes.install()
    try:
        with mpchain.profile() as profile:
            F.sum(F.relu(L.Linear(3, 2)(X))).backward()
    finally:
        function_classes.uninstall()
    for phase in ("forward", "backward"):
        found = {(row.link, row.name) for row in profile.rows() if row.phase == phase}
        assert {("/", "linear"), ("", "relu"), ("", "sum")} <= found
