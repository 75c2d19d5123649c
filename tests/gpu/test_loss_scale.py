"""Tests a dynamic loss scale on GPUs: steps equal those on hosts, without waiting for the GPU."""

import warnings

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import mixed16, optimizer_hooks, optimizers, serializers, using_config
from mpchain.kernels.gpu import cuda_steps
from mpchain.kernels.gpu.loss_scale import LossScaleOnGpu

pytestmark = pytest.mark.gpu

N_STEPS = 12
PLANTED = {3: np.inf, 4: np.nan, 8: -np.inf}
OPTIMIZERS = ["SGD", "MomentumSGD", "Adam", "RMSprop"]


def _model(device, dtype="f"):
    draw, model = np.random.RandomState(0), mpchain.ChainList()
    for shape in [(3, 4), (70, 80), (5,), ()]:
        link = mpchain.Link()
        with link.init_scope():
            link.p = mpchain.Parameter(np.asarray(draw.randn(*shape), dtype))
        model.append(link)
    return model.to_device(device)


def _train(model, optimizer, steps, observe=lambda: None):
    """Takes steps with gradients that are the same on all devices, and are sometimes not finite."""
    for step in steps:
        draw = np.random.RandomState(step)
        for param in model.params():
            grad = np.asarray(draw.randn(*param.shape), param.dtype)
            param.grad = param.device.send(grad)
        if step in PLANTED:
            model[2].p.grad[1:2] = PLANTED[step]
        optimizer.update()
        observe()
    return [mpchain.cuda.to_cpu(param.array) for param in model.params()]


def _trained(device, make, dtype="f", fp32=False, hook=None):
    """Returns parameters, counts, the loss scale and warnings."""
    model = _model(device, dtype)
    optimizer = make().setup(model)
    optimizer.use_fp32_update(fp32)
    optimizer.loss_scaling(interval=3)
    if hook is not None:
        optimizer.add_hook(hook)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        arrays = _train(model, optimizer, range(N_STEPS))
        scale = optimizer.loss_scale
    told = [str(w.message) for w in caught if w.category is RuntimeWarning]
    counts = [optimizer.t, *(param.update_rule.t for param in model.params())]
    return arrays, counts, scale, [text for text in told if "is skipped" in text]


def _assert_equal(make, **options):
    expected = _trained("@numpy", make, **options)
    actual = _trained("@cupy:0", make, **options)
    for x, y in zip(actual[0], expected[0], strict=True):
        np.testing.assert_array_equal(x, y)
    assert actual[1:] == expected[1:]
    assert len(expected[3]) == len(PLANTED) and expected[2] > 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits_are_those_of_the_host(name, when):
    _assert_equal(getattr(optimizers, name))


def test_steps_are_one_kernel_however_far_the_host_is_ahead(when, calls_of):
    calls = calls_of(cuda_steps.cuda, "raw")
    _trained("@cupy:0", optimizers.Adam)
    assert len({text for text, name, *_ in calls if name == "mpchain_step"}) == 1


@pytest.mark.parametrize("fp32", [True, False], ids=["copies", "no copies"])
def test_half_precision(fp32, when):
    _assert_equal(optimizers.Adam, dtype="e", fp32=fp32)


@pytest.mark.parametrize("dtype", ["e", "f"])
@pytest.mark.parametrize("hook", [None, optimizer_hooks.WeightDecay(0.1)], ids=["plain", "decay"])
def test_constant_scale(dtype, hook):
    """The step removes the scale from gradients in half precision; otherwise, one kernel does."""
    results = []
    for device in ("@numpy", "@cupy:0"):
        model = _model(device, dtype)
        optimizer = optimizers.Adam().setup(model)
        optimizer.use_fp32_update()
        optimizer.set_loss_scale(48.0)
        if hook is not None:
            optimizer.add_hook(hook)
        results.append(_train(model, optimizer, [0, 1, 2]))
    for x, y in zip(*results, strict=True):
        np.testing.assert_array_equal(x, y)


def test_hooks_that_change_gradients(when):
    _assert_equal(optimizers.Adam, hook=optimizer_hooks.WeightDecay(0.1))


def test_other_hooks_wait_and_are_not_called_in_skipped_steps():
    _assert_equal(optimizers.Adam, hook=_Shrink())


class _Shrink:
    name, timing, call_for_each_param = "Shrink", "post", True

    def __call__(self, rule, param):
        param.array *= 0.5


def test_steps_that_no_kernel_takes():
    class Rule(mpchain.UpdateRule):
        hyperparameters = {"lr": 0.1}
        states = ("v",)

        @staticmethod
        def step(p, g, v, lr):
            v += g
            return p - lr * v.clip(-1, 1), v

    class Clipping(mpchain.GradientMethod):
        rule = Rule

    _assert_equal(Clipping)


def test_the_host_never_waits(double):
    model = _model("@cupy:0", "e")
    optimizer = optimizers.Adam().setup(model)
    optimizer.use_fp32_update()
    optimizer.loss_scaling()
    waits = []

    def observe():
        waits.append(double.synchronizations.copy())
        double.reset()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _train(model, optimizer, range(N_STEPS), observe)
    assert not any(waits[1:]), waits
    double.reset()
    assert optimizer.loss_scale > 1
    assert double.synchronizations.total() == 1


def test_a_training_step_never_waits(double):
    with using_config("dtype", mixed16):
        model = mpchain.Sequential(L.Linear(8, 6), F.relu, L.Linear(6, 4)).to_device("@cupy:0")
    optimizer = optimizers.Adam().setup(model)
    optimizer.use_fp32_update()
    optimizer.loss_scaling()
    send = mpchain.get_device("@cupy:0").send
    x, t = send(np.ones((2, 8), np.float16)), send(np.arange(2, dtype=np.int32))
    for _ in range(3):
        double.reset()
        optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
    assert not double.synchronizations
    assert optimizer.loss_scale == 8


@pytest.mark.parametrize("after", [2, 5, 9])
def test_saved_and_restored(after, tmp_path, when):
    def make():
        model = _model("@cupy:0")
        optimizer = optimizers.Adam().setup(model)
        optimizer.loss_scaling(interval=3)
        return model, optimizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer = make()
        _train(model, optimizer, range(after))
        serializers.save_npz(tmp_path / "model", model)
        serializers.save_npz(tmp_path / "optimizer", optimizer)
        expected = _train(model, optimizer, range(after, N_STEPS))
        other, restored = make()
        serializers.load_npz(tmp_path / "model", other)
        serializers.load_npz(tmp_path / "optimizer", restored)
        actual = _train(other, restored, range(after, N_STEPS))
        assert restored.loss_scale == optimizer.loss_scale
    for x, y in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_arrays_that_are_not_finite_are_named(limit_arguments):
    import cupy

    limit_arguments(200)  # eight parameters fit into one kernel
    arrays = [(str(i), cupy.ones(2, "efd"[i % 3])) for i in range(40)]
    arrays.append(("empty", cupy.ones(0)))
    arrays.append(("turned", cupy.ones((2, 3)).T))
    for i, value in ((3, np.nan), (28, np.inf), (29, -np.inf)):
        arrays[i][1][1] = value
    names, found = cuda_steps.find_not_finite(arrays)
    flags = found.get()
    assert flags[0] == 1
    assert {name for name, flag in zip(names, flags[1:]) if flag} == {"3", "28", "29"}
    assert sorted(names) == sorted(name for name, _ in arrays if name != "empty")
    assert not cuda_steps.find_not_finite(arrays[-1:])[1].any()


def test_it_stays_within_its_bounds():
    import cupy

    scale = LossScaleOnGpu(40000.0, 2.0, False)
    bad = cupy.full(2, np.nan, np.float32)
    for expected in (65504, 65504, 32752):
        scale.step(1, [("x", bad if expected < 65504 else cupy.ones(2))], lambda: None, [])
        assert float(scale.factor) == expected
    names = [outcome.names for outcome in scale.outcomes(waits=True)]
    assert names == [[], [], ["x"]]
