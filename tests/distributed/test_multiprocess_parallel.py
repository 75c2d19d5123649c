"""Tests MultiprocessParallelUpdater, most often with the CPU as the device of each process."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import mpchain
from mpchain import optimizers, training
from mpchain.backends import nccl_bindings
from mpchain.datasets import TupleDataset
from mpchain.distributed import multiprocess_parallel
from mpchain.iterators import MultiprocessIterator, SerialIterator
from mpchain.iterators.worker import WorkerError
from mpchain.serializers import load_npz, save_npz
from tests.iterators.test_multiprocess_iterator import is_alive, segments  # noqa: F401
from tests.training.updaters.parallel_models import (
    Fails,
    FailsToArrive,
    Noting,
    Regression,
    T,
    Unsummable,
    X,
    assert_close,
    iterator,
    parameters,
)

pytestmark = [pytest.mark.usefixtures("segments", "quick_processes"), pytest.mark.slow]
CPUS = ["@numpy"] * 3


@pytest.fixture
def make():
    """Returns a function that makes an updater; the updater is finalized after the test."""
    made = []

    def make(iterators, model=None, **options):
        optimizer = options.pop("optimizer", None) or optimizers.MomentumSGD(0.05)
        optimizer.setup(model or Regression())
        options.setdefault("devices", CPUS[: len(iterators)])
        updater = training.updaters.MultiprocessParallelUpdater(iterators, optimizer, **options)
        made.append(updater)
        return updater

    yield make
    for updater in made:
        updater.finalize()


def target(updater):
    return updater.get_optimizer("main").target


def three(**options):
    """Returns iterators with batches of 1, 4 and 3 samples."""
    options = {"shuffle": False, **options}
    return [
        iterator(0, 7, 1, **options),
        iterator(7, 35, 4, **options),
        iterator(35, 60, 3, **options),
    ]


class Together:
    """Yields the joined batches of several iterators."""

    def __init__(self, iterators):
        self.iterators = iterators

    def next(self):
        return [sample for iterator in self.iterators for sample in iterator.next()]

    def __getattr__(self, name):
        return getattr(self.iterators[0], name)


def one_process(iterators, model=None, **options):
    optimizer = optimizers.MomentumSGD(0.05).setup(model or Regression())
    return training.StandardUpdater(Together(iterators), optimizer, **options)


def pids():
    return [process.pid for process in multiprocessing.active_children()]


@pytest.mark.parametrize("loss_scale", [None, 64.0])
def test_as_one_process_with_all_batches(make, loss_scale):
    whole = one_process(three(), loss_scale=loss_scale)
    updater = make(three())
    updater.get_optimizer("main").set_loss_scale(loss_scale)
    for _ in range(9):
        whole.update()
        updater.update()
        assert updater.get_optimizer("main").n_samples == 8
        assert (updater.epoch_detail, updater.is_new_epoch) == (
            whole.epoch_detail,
            whole.is_new_epoch,
        )
        assert_close(parameters(target(updater)), parameters(target(whole)))
    workers = pids()
    updater.finalize()
    assert not any(map(is_alive, workers))


@pytest.mark.long
def test_a_gradient_that_only_some_processes_have(make):
    # The expected gradient is the mean, over all samples, of the gradients of each process's loss.
    begins, sizes, expected = (0, 7, 35), (1, 4, 3), 0
    for begin, size in zip(begins, sizes):
        x, t = X[begin : begin + size], T[begin : begin + size]
        model = Unsummable()
        model(x, t).backward()
        if model.unused.W.grad is not None:
            expected += model.unused.W.grad * size / 8
    assert np.any(expected)
    updater = make(three(), Unsummable(), optimizer=optimizers.SGD(1))
    before = target(updater).unused.W.array.copy()
    updater.update()
    np.testing.assert_allclose(before - target(updater).unused.W.array, expected, rtol=1e-12)


def test_one_process_alone(make):
    whole = one_process(three()[:1])
    updater = make(three()[:1])
    for _ in range(3):
        whole.update()
        updater.update()
    assert_close(parameters(target(updater)), parameters(target(whole)), rtol=0)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*parameters are float16")
def test_float16(make):
    model = Regression()
    for param in model.params():
        param.array = param.array.astype(np.float16)
    updater = make(three(), model, converter=as_float16)
    updater.update()
    assert all(param.dtype == param.grad.dtype == np.float16 for param in model.params())
    whole = one_process(three())
    whole.update()
    assert_close(parameters(model), parameters(target(whole)), rtol=0.05)


def as_float16(batch, device):
    return tuple(x.astype(np.float16) for x in mpchain.dataset.concat_examples(batch, device))


@pytest.mark.long
def test_parameters_that_the_first_forward_pass_initializes(make):
    updater = make(three(), Regression(None))
    with pytest.raises(RuntimeError, match=r"parameters are not initialized.*: /first/W"):
        updater.setup_workers()
    np.random.seed(3)
    updater.update()
    whole = one_process(three(), Regression(None))
    np.random.seed(3)
    # The batch of the first device initializes the parameters.
    with mpchain.no_backprop_mode():
        target(whole)(*mpchain.dataset.concat_examples(three()[0].next()))
    whole.update()
    updater.update()
    whole.update()
    # The parameters are float32.
    assert_close(parameters(target(updater)), parameters(target(whole)), rtol=1e-5)


@pytest.mark.long
def test_observations_are_means_over_samples(make):
    expected, observed = {}, {}
    for updater, observation in ((one_process(three()), expected), (make(three()), observed)):
        trainer = training.Trainer(updater)
        with trainer.reporter.scope(observation):
            updater.update()
    assert observed.keys() == expected.keys() == {"main/loss", "main/x", "main/array"}
    for name in ("main/loss", "main/x"):
        value = getattr(expected[name], "array", expected[name])
        np.testing.assert_allclose(observed[name], value, rtol=1e-12)


@pytest.mark.long
def test_a_process_without_samples_left_takes_part_without_any(make):
    def iterators():
        return [iterator(0, 7, 1, shuffle=False), iterator(7, 17, 5, repeat=False, shuffle=False)]

    updater = make(iterators())
    numbers = []
    for _ in range(3):
        updater.update()
        numbers.append(updater.get_optimizer("main").n_samples)
    assert numbers == [6, 6, 1]


@pytest.mark.long
def test_processes_with_processes(make):
    def iterators():
        data = TupleDataset(X, T)
        options = {"shuffle": False, "n_processes": 1}
        return [MultiprocessIterator(data, size, **options) for size in (2, 3)]

    whole = one_process(
        [SerialIterator(TupleDataset(X, T), size, shuffle=False) for size in (2, 3)]
    )
    updater = make(iterators())
    for _ in range(3):
        updater.update()
        whole.update()
    assert_close(parameters(target(updater)), parameters(target(whole)))


@pytest.mark.long
def test_resume(make, tmp_path):
    trained = make(three(shuffle=None))
    for step in range(6):
        trained.update()
        if step == 3:
            save_npz(tmp_path / "state", trained)
    resumed = make(three(shuffle=None))
    resumed.update()  # the processes of this updater are already running
    load_npz(tmp_path / "state", resumed)
    for _ in range(2):
        resumed.update()
    assert resumed.iteration == trained.iteration == 6
    assert_close(parameters(target(resumed)), parameters(target(trained)), rtol=0)


@pytest.mark.long
def test_settings_and_devices_reach_the_processes(make, tmp_path):
    updater = make(three(), converter=Noting(tmp_path))
    updater.update()
    names = {str(os.getpid()), *map(str, pids())}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raise", ValueError, "bad batch"),
        ("exit", WorkerError, r"process 1 \(@numpy\) ended with exit code 7"),
        ("kill", WorkerError, r"process 1 \(@numpy\) was ended by SIGKILL"),
    ],
)
def test_a_process_that_fails(make, how, error, message):
    updater = make(three(), converter=Fails(how))
    updater.update()
    workers = pids()
    before = parameters(target(updater))
    with pytest.raises(error, match=message) as caught:
        updater.update()
    if how == "raise":
        assert "parallel_models.py" in "".join(caught.value.__notes__)
    assert not any(map(is_alive, workers))
    assert_close(parameters(target(updater)), before, rtol=0)
    updater.update()  # new processes continue


def test_a_failure_here_ends_the_processes(make):
    updater = make(three())
    updater.update()
    workers = pids()
    updater.converter = None
    with pytest.raises(TypeError):
        updater.update()
    assert not any(map(is_alive, workers))


@pytest.mark.long
def test_what_is_not_finalized_ends_by_itself():
    optimizer = optimizers.SGD().setup(Regression())
    updater = training.updaters.MultiprocessParallelUpdater(three(), optimizer, devices=CPUS)
    updater.update()
    workers = pids()
    del updater
    gc.collect()
    assert not any(map(is_alive, workers))


def test_what_cannot_be_sent(make):
    updater = make(three(), converter=lambda batch, device: None)
    with pytest.raises(TypeError, match=r"must be picklable, .*lambda"):
        updater.setup_workers()


@pytest.mark.long
@pytest.mark.parametrize("devices", [CPUS[:2], {"main": -1, "second": -1}, None])
def test_devices(make, devices):
    updater = make(three()[:2], devices=devices)
    assert updater.device == mpchain.get_device("@numpy")
    assert updater.available()


@pytest.mark.multi_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("binding", nccl_bindings.BINDINGS)
@pytest.mark.parametrize("devices", [[0, 1], [1, 0]])
def test_two_gpus(make, devices, binding, monkeypatch):
    try:
        nccl_bindings.find_binding(binding)
    except RuntimeError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(multiprocess_parallel, "find_binding", lambda: binding)
    whole, updater = one_process(three()[:2]), make(three()[:2], devices=devices)
    for _ in range(3):
        whole.update()
        updater.update()
    assert updater._exchange.comm._nccl.binding == binding
    assert mpchain.cuda.Device().id == 0
    target(updater).to_cpu()
    assert_close(parameters(target(updater)), parameters(target(whole)), rtol=1e-10)


@pytest.mark.gpu
def test_two_processes_on_one_gpu(make):
    """NCCL refuses two processes on one GPU."""
    whole, updater = one_process(three()[:2]), make(three()[:2], devices=[0, 0])
    for _ in range(3):
        whole.update()
        updater.update()
    target(updater).to_cpu()
    assert_close(parameters(target(updater)), parameters(target(whole)), rtol=1e-10)


@pytest.mark.multi_gpu
@pytest.mark.gpu
def test_parameters_whose_axes_are_not_in_order_on_two_gpus(make):
    whole, updater = one_process(three()[:2]), make(three()[:2], devices=[0, 1])
    W = target(updater).first.W
    W.array = W.array.T.copy().T
    for _ in range(3):
        whole.update()
        updater.update()
    target(updater).to_cpu()
    assert_close(parameters(target(updater)), parameters(target(whole)), rtol=1e-10)


@pytest.mark.multi_gpu
@pytest.mark.gpu
@pytest.mark.timeout(60)
def test_a_process_that_does_not_start_is_noticed_before_nccl_waits_for_it(make):
    iterators = [iterator(0, 30, 3), FailsToArrive([(X[0], T[0])], 1)]
    updater = make(iterators, devices=[0, 1])
    with pytest.raises(WorkerError, match=r"process 1 \(@cupy:1\) ended with exit code 1"):
        updater.update()


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "devices", "message"),
    [
        (2, CPUS, "as many devices as iterators, .* not 3 devices and 2 iterators"),
        (0, [], "as many devices as iterators, .* not 0 devices and 0 iterators"),
        (1, {"a": -1}, r"devices must have a 'main', not only \['a'\]"),
    ],
)
def test_wrong_devices(n, devices, message):
    optimizer = optimizers.SGD().setup(Regression())
    with pytest.raises(ValueError, match=f"MultiprocessParallelUpdater: .*{message}"):
        training.updaters.MultiprocessParallelUpdater(three()[:n], optimizer, devices=devices)


PROGRAM = """
    import os, sys
    from mpchain import optimizers, training
    from tests.training.updaters.parallel_models import Regression, iterator
    if __name__ == "__main__":
        updater = training.updaters.MultiprocessParallelUpdater(
            [iterator(0, 30, 3), iterator(30, 60, 3)],
            optimizers.SGD(0.01).setup(Regression()),
            devices=["@numpy", "@numpy"],
        )
        updater.update()
        print(updater._workers[0]._process.pid)
        sys.stdout.flush()
        END
"""


# A single long call would not receive a signal that arrives just before it.
WAIT = "while True: pass"


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "number"), [("", None), (WAIT, signal.SIGINT), (WAIT, signal.SIGKILL)]
)
def test_programs_leave_nothing_behind(tmp_path, end, number):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM).replace("END", end))
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-W", "error", path], text=True, **pipes) as process:
        worker = process.stdout.readline().strip()
        if number is not None:
            process.send_signal(number)
        # The pipe ends when the last process that inherited it has ended.
        stderr = process.stderr.read()
        assert process.wait() == (0 if number is None else -number)
    assert not is_alive(worker)
    if number != signal.SIGKILL:
        assert stderr.count("Traceback") == (number == signal.SIGINT)


def test_kinds_of_devices_are_not_mixed(monkeypatch):
    class Gpu(mpchain.backend.Device):
        name = "@cupy:0"

    cpu = mpchain.get_device("@numpy")
    monkeypatch.setattr(mpchain.backend, "get_device", lambda spec: Gpu() if spec == 0 else cpu)
    optimizer = optimizers.SGD().setup(Regression())
    with pytest.raises(ValueError, match="all CPUs or all GPUs, not @cupy:0, @numpy"):
        training.updaters.MultiprocessParallelUpdater(three()[:2], optimizer, devices=[0, -1])


def test_gpus_without_nccl(monkeypatch):
    class Gpu(mpchain.backend.GpuDevice):
        def __init__(self, number):
            self.name = f"@cupy:{number}"

    monkeypatch.setattr(nccl_bindings, "BINDINGS", {})
    with pytest.raises(RuntimeError, match="Updater: several GPUs need NCCL: NCCL cannot be used"):
        multiprocess_parallel._choose_communicator([Gpu(0), Gpu(1)])
