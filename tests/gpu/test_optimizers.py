"""Tests optimizers on GPUs, which need one kernel for the parameters of a dtype and have the same
bits as on hosts."""

import numpy as np
import pytest

import mpchain
from mpchain import optimizers
from mpchain.backends.dtypes import as_dtype

SHAPES = [(3, 4), (70, 80), (5,), (0, 2), ()]
RULES = [
    "SGD",
    "MomentumSGD",
    "NesterovAG",
    "Adam",
    "AMSGrad",
    "AdaBound",
    "RMSprop",
    "RMSpropGraves",
]
RULES += ["AdaGrad", "AdaDelta", "SMORMS3", "CorrectedMomentumSGD", "MSVAG"]


def _trained(device, optimizer, dtypes="f", n_steps=3, change=lambda model, step: None):
    """Returns the parameters after steps with gradients that are the same on all devices."""
    draw, model = np.random.RandomState(0), mpchain.ChainList()
    for dtype in dtypes:
        for shape in SHAPES:
            link = mpchain.Link()
            with link.init_scope():
                link.p = mpchain.Parameter(np.asarray(draw.randn(*shape), dtype))
            model.append(link)
    model.to_device(device)
    optimizer.setup(model)
    if "e" in dtypes:
        optimizer.use_fp32_update(False)
        optimizer.set_loss_scale(1.0)
    for step in range(n_steps):
        for param in model.params():
            param.grad = param.device.send(np.asarray(draw.randn(*param.shape), param.dtype))
        change(model, step)
        optimizer.update()
    return [mpchain.cuda.to_cpu(param.array) for param in model.params()]


def _assert_equal_bits(make, **options):
    expected = _trained("@numpy", make(), **options)
    for actual, array in zip(_trained("@cupy:0", make(), **options), expected, strict=True):
        np.testing.assert_array_equal(actual, array)


@pytest.mark.gpu
class TestOneKernel:
    @pytest.mark.parametrize("name", RULES)
    def test_bits_are_those_of_the_host(self, name):
        _assert_equal_bits(getattr(optimizers, name), dtypes="fd")

    def test_half_precision_is_computed_in_single(self):
        _assert_equal_bits(optimizers.Adam, dtypes="e")

    @pytest.mark.parametrize("options", [{"weight_decay_rate": 0.1}, {"amsgrad": True}])
    def test_steps_with_branches(self, options):
        _assert_equal_bits(lambda: optimizers.Adam(**options))

    def test_more_arrays_than_fit_into_the_arguments_of_one_kernel(self, limit_arguments):
        limit_arguments(200)
        _assert_equal_bits(optimizers.MomentumSGD, dtypes="fff")

    def test_gradients_that_are_not_contiguous(self):
        def turn(model, step):
            for param in model.params():
                if param.ndim == 2:
                    param.grad = param.grad.T.copy().T

        _assert_equal_bits(optimizers.MomentumSGD, change=turn)

    def test_parameters_that_are_updated_less_often(self):
        def rest(model, step):
            model[1].p.update_rule.enabled = step != 1

        _assert_equal_bits(optimizers.Adam, change=rest)

    def test_step_that_cannot_be_written_as_a_kernel(self):
        class Rule(mpchain.UpdateRule):
            hyperparameters = {"lr": 0.1}
            states = ("v",)

            @staticmethod
            def step(p, g, v, lr):
                v += g
                return p - lr * v.clip(-1, 1), v

        class Clipping(mpchain.GradientMethod):
            rule = Rule

        _assert_equal_bits(Clipping)

    def test_launches(self, double):
        counts = []

        def count(model, step):
            double.reset()

        for dtypes in ("f", "fde"):
            _trained("@cupy:0", optimizers.Adam(), dtypes, change=count)
            launches = double.launches.copy()
            counts.append([n for (name, _), n in launches.items() if name == "mpchain_step"])
            assert double.synchronizations.keys() <= {("get", place) for _, place in launches}
        assert [sum(found) for found in counts] == [1, 3]


@pytest.mark.gpu
@pytest.mark.parametrize("threshold", [1.0, 1e6])
@pytest.mark.parametrize("dtypes", ["fd", "e"])
def test_gradients_are_clipped_without_waiting(threshold, dtypes, request):
    def trained(device, change=lambda model, step: None):
        optimizer = optimizers.MomentumSGD()
        clipping = mpchain.optimizer_hooks.GradientClipping(threshold)

        def begin(model, step):
            if step == 0:
                optimizer.add_hook(clipping)
            change(model, step)

        return _trained(device, optimizer, dtypes, change=begin)

    if request.config.option.gpu == "double":
        import cupy

        actual = trained("@cupy:0", lambda model, step: cupy.double.reset())
        # Only reading the results waits.
        assert {name for name, _ in cupy.double.synchronizations} == {"get"}
    else:
        actual = trained("@cupy:0")
    for array, expected in zip(actual, trained("@numpy"), strict=True):
        np.testing.assert_allclose(array, expected, *((2e-3,) * 2 if dtypes == "e" else (1e-6, 0)))


HALVES = {"float16": np.dtype(np.float16), "bfloat16": as_dtype("bfloat16")}


def _trained_on_copies(device, name, dtype, scale=None, hook=False, observe=lambda step: None):
    """Returns parameters of half and single precision, and the float32 copies of the half-precision
    parameters."""
    draw, model = np.random.RandomState(0), mpchain.ChainList()
    for kind in (HALVES[dtype], np.dtype("f")):
        for shape in SHAPES:
            link = mpchain.Link()
            with link.init_scope():
                link.p = mpchain.Parameter(np.asarray(draw.randn(*shape)).astype(kind))
            model.append(link)
    model.to_device(device)
    optimizer = getattr(optimizers, name)().setup(model)
    optimizer.use_fp32_update()
    optimizer.loss_scaling(scale=scale) if scale else optimizer.set_loss_scale(1.0)
    if hook:
        optimizer.add_hook(mpchain.optimizer_hooks.WeightDecay(0.1))
    for step in range(5):
        for param in model.params():
            grad = np.asarray(draw.randn(*param.shape)).astype(param.dtype)
            param.grad = param.device.send(grad)
        if step == 2:  # a value that the program sets is used
            model[0].p.array[1] = 0.5
            model[4].p.array[...] = np.nan
        observe(step)
        optimizer.update()
    copies = [
        link.p.update_rule.kept()["fp32_param"] for link in model if link.p.dtype.itemsize == 2
    ]
    return [
        mpchain.cuda.to_cpu(x).astype("f") for x in (*(p.array for p in model.params()), *copies)
    ]


@pytest.mark.gpu
class TestFloat32Copies:
    @pytest.mark.parametrize("dtype", HALVES)
    @pytest.mark.parametrize("name", ["SGD", "MomentumSGD", "Adam", "RMSprop"])
    @pytest.mark.parametrize(
        "options", [{}, {"scale": 8.0}, {"hook": True}], ids=["alone", "scale", "hook"]
    )
    def test_bits_are_those_of_the_host(self, options, name, dtype):
        expected = _trained_on_copies("@numpy", name, dtype, **options)
        actual = _trained_on_copies("@cupy:0", name, dtype, **options)
        assert len(actual) == 3 * len(SHAPES)
        for x, y in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(x, y)

    @pytest.mark.parametrize("dtype", HALVES)
    def test_one_launch_for_each_dtype(self, dtype, double):
        def observe(step):
            counts.append([name for name, _ in double.launches.elements()])
            double.reset()

        counts = []
        _trained_on_copies("@cupy:0", "Adam", dtype, observe=observe)
        sent = ["asarray"] * 2 * len(SHAPES)  # the next gradients are sent
        assert sorted(counts[-1]) == sorted(["mpchain_step"] * 2 + sent)
