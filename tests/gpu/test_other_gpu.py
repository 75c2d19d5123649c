"""Tests arrays of one GPU that are used while another GPU is current."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import testing

pytestmark = pytest.mark.gpu


class _Net(mpchain.Chain):
    def __init__(self, dtype):
        super().__init__()
        with self.init_scope(), mpchain.using_config("dtype", dtype):
            self.convolution = L.Convolution2D(1, 3, 3)
            self.normalization = L.BatchNormalization(3)
            self.hidden = L.Linear(None, 8)
            self.out = L.Linear(8, 4)

    def forward(self, x, t):
        h = F.relu(self.normalization(self.convolution(x)))
        h = F.dropout(F.max_pooling_2d(h, 2), 0.2)
        return F.softmax_cross_entropy(self.out(F.tanh(self.hidden(h))), t)


def _train(device, make_optimizer, dtype, is_current):
    np.random.seed(0)
    model = _Net(dtype)
    x = np.random.rand(4, 1, 8, 8).astype(dtype)
    model(x, np.zeros(4, int))  # this call initializes the model on the host
    model.to_device(device)
    optimizer = make_optimizer()
    optimizer.setup(model)
    optimizer.add_hook(mpchain.optimizer_hooks.WeightDecay(0.01))
    optimizer.add_hook(mpchain.optimizer_hooks.GradientClipping(1.0))
    if dtype == np.float16:
        optimizer.use_fp32_update()
        optimizer.loss_scaling()
    send = mpchain.get_device(device).send
    with mpchain.using_device(device if is_current else "@cupy:0"):
        with mpchain.using_device(device):
            mpchain.cuda.cupy.random.seed(3)
        for _ in range(3):
            optimizer.update(model, send(x), send(np.arange(4)))
    return {name: mpchain.cuda.to_cpu(param.array) for name, param in model.namedparams()}


def _joint():
    comm = mpchain.create_communicator("dummy")
    return mpchain.create_multi_node_optimizer(mpchain.optimizers.Adam(), comm)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("make", [mpchain.optimizers.Adam, mpchain.optimizers.MomentumSGD, _joint])
@testing.attr.multi_gpu(2)
def test_training_needs_no_current_gpu(make, dtype):
    expected = _train("@cupy:1", make, dtype, is_current=True)
    trained = _train("@cupy:1", make, dtype, is_current=False)
    for key, value in expected.items():
        np.testing.assert_array_equal(trained[key], value)


@testing.attr.multi_gpu(2)
def test_the_current_gpu_stays_as_it_was():
    x = mpchain.Variable(mpchain.get_device("@cupy:1").send(np.ones(3, np.float32)))
    y = F.sum(x * 2)
    y.backward()
    assert x.grad.device.id == 1
    assert mpchain.cuda.Device().id == 0


@testing.attr.multi_gpu(2)
def test_a_graph_over_two_gpus():
    x = mpchain.Variable(mpchain.get_device("@cupy:0").send(np.ones(3, np.float32)))
    y = F.copy(x * 2, 1) ** 2
    loss = F.sum(F.copy(y, 0) + x)
    loss.backward()
    assert x.grad.get().tolist() == [9, 9, 9]
    assert x.grad.device.id == 0


@testing.attr.multi_gpu(2)
def test_copyto_between_gpus():
    source = mpchain.get_device("@cupy:1").send(np.arange(3.0))
    target = mpchain.get_device("@cupy:0").send(np.zeros(3, np.float32))
    mpchain.backend.copyto(target, source)
    assert target.get().tolist() == [0, 1, 2]
    mpchain.backend.copyto(source, target + 1)
    assert source.get().tolist() == [1, 2, 3]


def test_copyto_from_the_host_copies_once(double):
    target = mpchain.get_device("@cupy:0").send(np.zeros((2, 3), np.float32))
    double.reset()
    mpchain.backend.copyto(target, np.arange(6.0).reshape(2, 3))
    assert [name for name, _ in double.launches.elements()] == ["set"]
    assert double.synchronizations.total() == 1  # after the wait, the source may change
    mpchain.backend.copyto(target.T, np.arange(3.0)[:, None])
    assert target.get().tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("device", ["@cupy:0", "@cupy:1"])
@testing.attr.multi_gpu(2)
def test_new_initial_values_are_where_the_old_ones_were(device):
    link = L.Linear(3, 2)
    link.to_device(device)
    copied = link.copy("init")
    assert copied.W.device == link.W.device and copied.device == link.device
    repeated = link.repeat(2)
    assert {param.device.name for param in repeated.params()} == {device}


@testing.attr.multi_gpu(2)
def test_methods_of_communicators():
    comm = mpchain.create_communicator("dummy")
    model = L.Linear(3, 2).to_device("@cupy:1")
    for param in model.params():
        param.grad = param.device.send(param.array.get())
    comm.bcast_data(model)
    comm.multi_node_mean_grad(model)
    assert model.W.grad.device.id == model.W.array.device.id == 1
    np.testing.assert_array_equal(model.W.grad.get(), model.W.array.get())


@testing.attr.multi_gpu(2)
def test_summaries_of_values_on_another_gpu():
    send = mpchain.get_device("@cupy:1").send
    summary = mpchain.Summary()
    for value in (1.0, 3.0):
        summary.add(send(np.array(value, np.float32)))
    mean, deviation = summary.make_statistics()
    assert (float(mean), float(deviation)) == (2, 1)
    saved = mpchain.serializers.DictionarySerializer()
    saved.save(summary)
    assert float(saved.target["_x2"]) == 10
