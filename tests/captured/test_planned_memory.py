"""Tests that kernels of replayed steps write into the memory that was planned for their results."""

import numpy as np

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.kernels import cpu
from mpchain.kernels.cpu import channels_last
from mpchain.kernels.operation import Operation


def _model():
    np.random.seed(0)
    return mpchain.Sequential(
        L.Convolution2D(16, 40, 3, pad=1, nobias=True),
        L.BatchNormalization(40),
        F.relu,
        L.Convolution2D(40, 40, 1),
        F.relu,
        lambda x: F.max_pooling_2d(x, 2),
        L.Convolution2D(40, 20, 3, stride=2, groups=2),
        L.Linear(320, 3),
    )


def test_kernels_write_to_planned_memory(monkeypatch):
    found = []

    def watched(make):
        def call(*args, **kwargs):
            made = make(*args, **kwargs)
            found.append(made is kwargs["out"])
            return made

        return call

    modules = cpu.numba_cpu, cpu.onednn_convolution, cpu.pointwise, cpu.loops
    for module in modules:
        for name in ("empty", "result", "result_last"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, watched(getattr(module, name)))

    def train(capture):
        model = _model()
        optimizer = optimizers.MomentumSGD(0.01).setup(model)

        def step(x, t):
            loss = F.softmax_cross_entropy(model(x), t)
            model.cleargrads()
            loss.backward()
            optimizer.update()

        step = capture(step)
        random = np.random.RandomState(0)
        for _ in range(5):
            step(random.randn(6, 16, 20, 20).astype("f"), random.randint(0, 3, 6).astype("i"))
        return model, step

    expected, _ = train(lambda step: step)
    assert not any(found)
    model, step = train(mpchain.capture)
    assert step.reason is None
    if cpu.onednn.why_absent() is None and cpu.compiler.load_numba() is not None:
        assert sum(found) >= 8
    for (name, p), (_, q) in zip(model.namedparams(), expected.namedparams(), strict=True):
        np.testing.assert_allclose(p.array, q.array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_planned_memory_is_taken_only_where_it_fits():
    out = np.zeros((2, 3), np.float32)
    assert channels_last.empty((2, 3), np.float32, out=out) is out
    for shape, dtype in (((3, 2), np.float32), ((2, 3), np.float64)):
        made = channels_last.empty(shape, dtype, out=out)
        assert made is not out and made.shape == shape and made.dtype == dtype
    out = np.zeros((3, 2), np.float32).T
    assert channels_last.empty((2, 3), np.float32, out=out).flags.c_contiguous


def test_scratch_of_the_shape_of_the_result_does_not_take_its_memory():
    """A replay passes planned memory to one named array, so no other array of the same shape gets
    it."""

    given = []

    @Operation
    def twice(x):
        return 2 * x

    @twice.kernel("numpy_cpu")
    def by_scratch(x, out=None):
        given.append(out)
        scratch = channels_last.empty(x.shape, x.dtype)
        scratch[...] = x
        y = channels_last.empty(x.shape, x.dtype, out=out)
        return np.add(scratch, scratch, out=y)

    step = mpchain.capture(lambda x: twice(x + 1) - 1)
    x = np.arange(6, dtype=np.float32)
    assert all(np.array_equal(step(x), 2 * x + 1) for _ in range(5)) and step.reason is None
    assert given[0] is None and given[-1] is not None
