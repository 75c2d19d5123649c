"""Tests old keywords, and attributes of Chainer's classes that programs read."""

import subprocess
import sys

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import datasets, function_hooks, optimizers, testing
from mpchain.training import extensions, triggers
from mpchain.training.progress import print_line
from tests.distributed import ranks

pytestmark = pytest.mark.slow


def test_keywords_of_before():
    assert extensions.LogReport(log_name="a")._filename == "a"
    assert extensions.dump_graph("main/loss", out_name="b.dot")._filename == "b.dot"
    assert triggers.EarlyStoppingTrigger(patients=7).patience == 7


def test_private_attributes():
    norm = L.BatchNormalization(2)
    assert set(norm._persistent) == {"avg_mean", "avg_var", "N"}
    assert norm._device_id is None
    layers = mpchain.ChainList(L.Linear(2, 2), L.Linear(2, 3))
    layers._children[1] = replaced = L.Linear(2, 4)
    assert layers[1] is replaced
    half = datasets.SubDataset(range(6), 2, 5)
    assert (half._order, half._size) == (None, 3)
    images = datasets.LabeledImageDataset([("a.png", 3)], root="pictures")
    assert (images._pairs, images._root) == ([("a.png", 3)], "pictures")
    x = mpchain.Variable(np.ones(2, "f"), requires_grad=False)
    assert x.node._requires_grad is False and x._data[0] is x.array


def test_attributes_of_training():
    trainer = testing.get_trainer_with_mock_updater()
    trainer.extend(lambda trainer: None, name="a", priority=7)
    assert trainer._extensions["a"].priority == 7
    assert extensions.LogReport(filename="b")._log_name == "b"
    assert extensions.PlotReport(["loss"], filename="c.png")._file_name == "c.png"
    assert triggers.IntervalTrigger(3, "epoch").count == 0
    assert triggers.EarlyStoppingTrigger().already_warning is False
    assert function_hooks.TimerHook().table == {"sec": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    assert mpchain.dataset.ConcatWithAsyncTransfer(compute_stream=3).compute_stream == 3


def test_a_subclass_of_a_report_works_on_its_private_state():
    class LastMeans(extensions.LogReport):
        def __call__(self, trainer):
            keys = self._keys or trainer.observation
            self._summary.add({key: trainer.observation[key] for key in keys})
            if self._trigger(trainer):
                self.log.append(self._summary.compute_mean())
                self._init_summary()

    trainer = testing.get_trainer_with_mock_updater()
    report = LastMeans(["loss"], trigger=lambda trainer: trainer.observation["loss"] > 2)
    for loss in (1.0, 3.0, 5.0):
        trainer.observation = {"loss": loss, "other": 0.0}
        report(trainer)
    assert report.log == [{"loss": 2.0}, {"loss": 5.0}]
    report._keys = ["other"]
    assert report._means._keys == ["other"]
    plot = extensions.PlotReport(["loss"])
    assert plot._data == {"loss": []} and plot._trigger is plot._means._trigger


def test_reports_are_printed_to_streams_that_only_write():
    class Lines:
        text = ""

        def write(self, text):
            self.text += text

    lines = Lines()
    print_line("epoch", lines)
    assert lines.text == "epoch\n"


def test_private_state_of_iterators_and_data():
    iterator = mpchain.iterators.SerialIterator(range(5), 2, shuffle=False)
    assert (iterator._shuffle, iterator._epoch_size) == (False, 5)
    assert mpchain.iterators.SerialIterator(range(5), 2)._shuffle is True
    part = datasets.SubDataset(range(6), 2, 5)
    assert (part._start, part._finish) == (2, 5)
    with pytest.raises(AttributeError, match="no range; use _order"):
        datasets.SubDataset(range(6), 0, 2, np.arange(6)[::-1])._start
    assert datasets.TupleDataset([1, 2], [3, 4])._length == 2
    images = datasets.LabeledImageDataset([("a.png", 3)], label_dtype="q")
    assert images._label_dtype == np.int64


def test_private_state_of_nodes_links_and_summaries():
    x = mpchain.Variable(np.ones(2, "f"))
    y = F.exp(x)
    assert y.node._creator_node is y.creator_node and x.node._data is x.array
    summary = mpchain.reporter.Summary()
    for value in (1.0, 2.0, 4.0):
        summary.add(value)
    assert summary._x2 == pytest.approx(21)
    observer, reporter = object(), mpchain.Reporter()
    reporter.add_observer("main", observer)
    assert reporter._observer_names == {id(observer): "main"}
    link = L.Linear(1, 1)
    assert link._n_local_link_hooks == 0
    link.add_hook(mpchain.link_hooks.TimerHook())
    assert link._n_local_link_hooks == 1 and list(link._local_link_hooks) == ["TimerHook"]
    norm = L.BatchNormalization(2, dtype="e", initial_avg_mean=3)
    assert (norm._initial_avg_mean, norm._highprec_dtype) == (3, np.float16)
    link.W.update_rule = rule = optimizers.Adam().create_update_rule()
    assert rule._state is rule.state

    class Square(mpchain.FunctionNode):
        def forward(self, xs):
            self.retain_inputs((0,))
            assert tuple(self._input_indexes_to_retain) == (0,)
            return (xs[0] ** 2,)

    assert Square().apply((x,))[0].array.tolist() == [1, 1]


def test_attributes_of_links():
    assert L.DepthwiseConvolution2D(3, 2, 3).channel_multiplier == 2
    bilinear = L.Bilinear(2, 3, 4)
    with pytest.warns(DeprecationWarning, match="use cleargrads"):
        bilinear.zero_grads()
    assert not bilinear.W.grad.any()


def test_tests_of_functions_that_are_run_by_hand():
    class TestDouble(testing.FunctionTestCase):
        skip_backward_test = True

        def generate_inputs(self):
            return (np.ones(3, "f"),)

        def forward(self, inputs, device):
            return (inputs[0] * 2,)

        def forward_expected(self, inputs):
            return (inputs[0] * self.factor,)

    test = TestDouble("run_test_forward")
    test.factor = 2
    test.run_test_forward(testing.BackendConfig({}))
    test.factor = 3
    with pytest.raises(testing.FunctionTestError):
        test.run_test_forward(testing.BackendConfig({}))


def test_a_table_of_an_alias_sampler():
    sampler = mpchain.utils.WalkerAlias([1, 2])
    assert sampler.sample_xp(np, (2, 3)).shape == sampler.sample_gpu((2, 3)).shape == (2, 3)


def _updated_adam():
    link = L.Linear(1, 1)
    optimizer = optimizers.Adam().setup(link)
    optimizer.update(lambda: F.sum(link(np.ones((1, 1), "f"))))
    return optimizer


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mpchain.Variable(np.ones(2)).zerograd(), "Variable.zerograd .*use cleargrad"),
        (lambda: L.Linear(2, 2).to_cpu(), "to_cpu is deprecated: use to_device"),
        (lambda: L.Linear(2, 2).to_intel64(), "to_intel64 is deprecated: use to_device"),
        (lambda: mpchain.utils.WalkerAlias([1]).to_cpu(), "to_cpu is deprecated"),
        (lambda: optimizers.SGD().use_cleargrads(), "use_cleargrads is deprecated$"),
        (lambda: _updated_adam().lr, "Adam.lr is deprecated: use alpha_t"),
        (lambda: _updated_adam().target.W.update_rule.lr, "AdamRule.lr is deprecated"),
    ],
)
def test_what_is_deprecated_warns_as_in_chainer(call, message):
    with pytest.warns(DeprecationWarning, match=message) as caught:
        call()
    assert {warning.filename for warning in caught} == {__file__}


def test_functions_that_are_deprecated():
    import chainer

    with pytest.warns(DeprecationWarning, match=r"use chainer.optimizer_hooks.WeightDecay"):
        hook = chainer.optimizer.WeightDecay(0.5)
    assert isinstance(hook, chainer.optimizer_hooks.WeightDecay) and hook.rate == 0.5
    with pytest.warns(DeprecationWarning, match="n_fold is deprecated: use n_folds"):
        folds = chainer.datasets.get_cross_validation_datasets([1, 2, 3], n_fold=3)
    assert len(folds) == len(chainer.datasets.get_cross_validation_datasets([1, 2, 3], 3)) == 3
    with pytest.warns(DeprecationWarning, match="batch_matmul is deprecated: use matmul"):
        y = chainer.functions.batch_matmul(np.ones((2, 3, 1), "f"), np.ones((2, 3), "f"), True)
    assert y.shape == (2, 1, 1)
    with pytest.warns(DeprecationWarning, match="use get_device_from_id"):
        device = chainer.cuda.get_device(np.ones(2))
    assert device == chainer.cuda.DummyDevice
    assert isinstance(chainer.cuda.DummyDevice, chainer.cuda.DummyDeviceType)


X = np.ones((2, 3), "f")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: L.BatchNormalization(3)(X, test=True),
            r"BatchNormalization.*test .*'train', False",
        ),
        (lambda: F.dropout(X, train=False), r"dropout.*train .*using_config"),
        (lambda: mpchain.Variable(X, volatile=True), r"Variable.*volatile .*no_backprop_mode"),
        (lambda: F.relu(X, use_cudnn=False), r"relu.*use_cudnn .*using_config"),
        (lambda: L.Convolution2D(3, 4, 3, wscale=1), r"Convolution2D.*wscale .*initializer"),
        (lambda: L.NStepLSTM(1, 2, 3, 0, use_cudnn=True), r"use_cudnn .*using_config"),
        (
            lambda: testing.get_trainer_with_mock_updater().extend(
                lambda trainer: None, invoke_before_training=True
            ),
            r"Trainer.extend.*invoke_before_training .*use initializer",
        ),
        (lambda: L.Convolution2D(3, 4, 3, deterministic=True), r"deterministic.*cudnn_determin"),
    ],
)
def test_arguments_of_chainer_1(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_containers_of_chainer_1():
    import chainer

    with pytest.raises(NotImplementedError, match=r"derive from chainer.Chain"):
        chainer.FunctionSet(l=L.Linear(2, 3))


def test_a_chain_gives_its_attributes_by_name():
    model = mpchain.Chain(l=L.Linear(2, 3))
    model.pool = F.relu
    assert model["pool"] is F.relu and model["l"] is model.l


ONE_PROCESS = """
import chainermn

comm = chainermn.create_communicator("naive")
assert comm.mpi_comm.size == 1 and comm.mpi_comm.scatter([3]) == 3
"""


@pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not() or "-")
def test_mpi_communicator_of_one_process(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(ONE_PROCESS, "utf-8")
    command = [sys.executable, "-m", "mpchain.compat", str(program)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
