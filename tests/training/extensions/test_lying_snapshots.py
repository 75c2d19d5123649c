"""Tests snapshots with right checksums and wrong content: one error names file and entry."""

import json
import signal

import numpy as np
import pytest

import mpchain
import mpchain.links as L
from mpchain import optimizers, training
from mpchain.datasets import TupleDataset
from mpchain.iterators import MultithreadIterator, SerialIterator, ShuffleOrderSampler
from mpchain.serializers import SerializationError, load_npz, save_npz
from mpchain.serializers.npz import read_npz, write_npz
from mpchain.training import extensions


def make_trainer(out, iterator_class=SerialIterator):
    x = np.arange(50, dtype=np.float32).reshape(10, 5)
    model = L.Classifier(L.Linear(5, 3))
    optimizer = optimizers.SGD(0.001).setup(model)
    sampler = ShuffleOrderSampler(np.random.RandomState(0))
    dataset = TupleDataset(x, np.arange(10) % 3)
    iterator = iterator_class(dataset, 4, order_sampler=sampler)
    trainer = training.Trainer(
        training.StandardUpdater(iterator, optimizer), (5, "iteration"), out=out
    )
    trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
    return trainer


@pytest.fixture
def lie(tmp_path):
    """Returns a function that writes a snapshot after three iterations with one entry replaced, and
    returns its path."""

    def write(key, change):
        path = tmp_path / "snapshot"
        trainer = make_trainer(tmp_path)
        trainer.stop_trigger = training.triggers.get_trigger((3, "iteration"))
        trainer.run()
        save_npz(path, trainer)
        arrays = read_npz(path)
        write_npz(path, arrays | {key: np.asarray(change(arrays[key]))})
        return path

    return write


@pytest.fixture
def time_limit():
    """Ends an endless loop by SIGALRM."""

    def stop(number, frame):
        raise TimeoutError("it does not end")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


def in_state(**changes):
    def change(array):
        state = json.loads(array.tobytes())
        for key, value in changes.items():
            (state["state"] if key in state["state"] else state)[key] = value
        return np.frombuffer(json.dumps(state).encode(), np.uint8)

    return change


def text_in_state(**changes):
    def change(array):
        content = np.frombuffer(str(array).encode(), np.uint8)
        return str(in_state(**changes)(content).tobytes(), "utf-8")

    return change


ITERATOR = "updater/iterator:main"
LIES = [
    ("_random/numpy", in_state(pos=10**9), "the position 1000000000, which must be an integer"),
    ("_random/numpy", in_state(pos=-1), "the position -1, which must be"),
    ("_random/numpy", in_state(pos=1.5), "the position 1.5, which must be"),
    ("_random/numpy", in_state(key=[1, 2]), "'_random/numpy' cannot be restored"),
    ("_random/numpy", in_state(bit_generator="seed"), "'seed' is not a random generator"),
    ("_random/numpy", lambda array: array[:-5], "'_random/numpy' cannot be restored: JSOND"),
    ("_random/python", lambda array: np.frombuffer(b"[3, [1], null]", "u1"), "'_random/python' c"),
    ("_random/python", lambda array: 5.0, "'_random/python' cannot be restored"),
    (f"{ITERATOR}/order_sampler/random_state", text_in_state(pos=10**9), "the position 10000000"),
    (f"{ITERATOR}/order_sampler/random_state", lambda array: "{", "random_state' cannot be rest"),
    (f"{ITERATOR}/current_position", lambda array: 11, "current_position must be .* 10, not 11"),
    (f"{ITERATOR}/current_position", lambda array: -1, "current_position must be .* not -1"),
    (f"{ITERATOR}/current_position", lambda array: np.nan, "current_position must be .* not nan"),
    (f"{ITERATOR}/order", lambda array: array[:1], "current_position must be .* 1, not 2"),
    (f"{ITERATOR}/order", lambda array: array[:0], r"order must be .* int64 of shape \(0,\)"),
    (f"{ITERATOR}/order", lambda array: array + 1, "order has indices from 1 to 10 of 10 exa"),
    (f"{ITERATOR}/order", lambda array: array - 1, "order has indices from -1 to 8 of 10"),
    (f"{ITERATOR}/order", lambda array: array * 0.5, "order must be .* not float64"),
    (f"{ITERATOR}/order", lambda array: array.reshape(5, 2), r"order must be .* shape \(5, 2\)"),
    (f"{ITERATOR}/epoch", lambda array: -(10**9), "epoch must be .* not -1000000000"),
    ("updater/iteration", lambda array: -(10**9), "the saved iteration must be .* not -1000000000"),
    ("updater/iteration", lambda array: np.nan, "the saved iteration must be .* not nan"),
    ("updater/iteration", lambda array: "three", "'updater/iteration' is .*three.* a int here"),
    (
        "stop_trigger/previous_iteration",
        lambda array: np.nan,
        "progress in iterations must be .* not nan",
    ),
    ("extensions/LogReport/_log", lambda array: "[", "LogReport/_log' cannot be restored: JSON"),
    ("_outstanding", lambda array: "[", "'_outstanding' cannot be restored: JSONDecodeError"),
]


@pytest.mark.parametrize(("key", "change", "match"), LIES)
def test_a_lie_is_refused_by_name(lie, tmp_path, time_limit, key, change, match):
    path = lie(key, change)
    trainer = make_trainer(tmp_path / "new")
    with pytest.raises(SerializationError, match=rf"load_npz: {path}: .*{match}"):
        load_npz(path, trainer)
        trainer.run()  # without the error, NumPy may crash, or the iterator not end


def test_iterators_that_look_ahead_refuse_the_same(lie, tmp_path, time_limit):
    path = lie(f"{ITERATOR}/current_position", lambda array: 11)
    trainer = make_trainer(tmp_path / "new", MultithreadIterator)
    with pytest.raises(SerializationError, match=f"{path}: .*current_position .* not 11"):
        load_npz(path, trainer)
    trainer.updater.finalize()


@pytest.mark.parametrize("kind", ["Philox", "PCG64"])
def test_the_generator_of_the_configuration(tmp_path, kind):
    def change(array):
        state = json.loads(array.tobytes())
        position = {"buffer_pos": 10**9} if kind == "Philox" else {"has_uint32": "no"}
        return np.frombuffer(json.dumps(state | position).encode(), np.uint8)

    path = tmp_path / "snapshot"
    with mpchain.using_config("rng", np.random.Generator(getattr(np.random, kind)(0))):
        save_npz(path, make_trainer(tmp_path))
        load_npz(path, make_trainer(tmp_path))
        arrays = read_npz(path)
        write_npz(path, arrays | {"_random/config": change(arrays["_random/config"])})
        with pytest.raises(SerializationError, match=f"{path}: .*(10000000|'_random/config')"):
            load_npz(path, make_trainer(tmp_path))


def test_a_snapshot_of_another_model_names_all_and_changes_nothing(tmp_path):
    path = tmp_path / "snapshot"
    trainer = make_trainer(tmp_path)
    trainer.run()
    save_npz(path, trainer)
    other = make_trainer(tmp_path)
    other.updater.get_optimizer("main").target.predictor.b.array = np.zeros(4, np.float32)
    params = dict(other.updater.get_optimizer("main").target.namedparams())
    before = {name: param.array.copy() for name, param in params.items()}
    with pytest.raises(SerializationError, match=r"predictor/b' has shape \(3,\)"):
        load_npz(path, other)
    for name, param in params.items():
        np.testing.assert_array_equal(param.array, before[name])
    assert other.updater.iteration == other.updater.epoch == 0
