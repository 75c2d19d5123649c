"""Compares functions and training runs on a GPU with the CPU, and captured with eager steps."""

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import mpchain.functions as F
import mpchain.links as L
from mpchain import annexes, iterators, optimizers, training
from mpchain.backend import get_device
from mpchain.backends import cuda
from mpchain.configuration import config, mixed16, mixed_bf16, using_config
from mpchain.dataset import ConcatWithAsyncTransfer
from mpchain.link import Chain, Link, Sequential
from mpchain.testing import cupy_contract
from mpchain.variable import Variable

TOLERANCE = 2e-3
"""The largest difference that passes in all dtypes but float16, relative to the largest number.
Kernels may use other algorithms than the CPU, and may round factors to ten bits (TF32)."""

HALF_TOLERANCE = 1e-2
"""The largest relative difference that passes in float16, whose fractions have ten bits."""

Results = dict[str, np.ndarray]


class NotHere(Exception):
    """A check needs hardware or a library that this machine lacks; the message names what it needs.

    Example:
        >>> raise NotHere("16 GiB of GPU memory")
        Traceback (most recent call last):
        mpchain.gpu_doctor.check.NotHere: 16 GiB of GPU memory
    """


def _function(
    call: Callable, *shapes: tuple[int, ...], dtype: type = np.float32
) -> Callable[[str], Results]:
    """Returns a check of a function's value and of the gradients of all its arguments."""

    def check(device_name: str) -> Results:
        draw, device = np.random.RandomState(0), get_device(device_name)
        arrays = [draw.randn(*shape).astype(dtype) for shape in shapes]
        variables = [Variable(device.send(array)) for array in arrays]
        y = call(*variables)
        weights = device.send(draw.randn(*y.shape).astype(dtype))
        F.sum(y * weights).backward()
        grads = {f"gradient {i}": variable.grad for i, variable in enumerate(variables)}
        return {"value": y.array, **grads}

    return check


class _ConvNet(Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            # A bias before a normalization would have no gradient apart from rounding errors.
            self.conv = L.Convolution2D(3, 8, 3, nobias=True)
            self.norm = L.BatchNormalization(8)
            self.out = L.Linear(None, 4)

    def forward(self, x):
        h = F.max_pooling_2d(F.relu(self.norm(self.conv(x))), 2)
        return self.out(F.mean(h, axis=(2, 3)))


class _Recurrent(Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.cell, self.out = L.LSTM(48, 16), L.Linear(16, 4)

    def forward(self, x):
        self.cell.reset_state()
        rows = F.split_axis(F.reshape(x, (len(x), 4, 48)), 4, axis=1)
        return self.out([self.cell(F.reshape(row, (len(x), 48))) for row in rows][-1])


def _data():
    draw = np.random.RandomState(1)
    return [(draw.randn(3, 8, 8).astype(np.float32), np.int32(i % 4)) for i in range(48)]


def _training(network: type[Chain], optimizer: type) -> Callable[[str], Results]:
    """Returns a check of the parameters after six iterations of training."""

    def check(device_name: str) -> Results:
        model = _make(network, device_name)
        batches = iterators.SerialIterator(_data(), 16, shuffle=False)
        rule = optimizer().setup(model)
        if config.dtype is mixed_bf16:
            rule.use_fp32_update()
        updater = training.StandardUpdater(batches, rule, device=device_name)
        for _ in range(6):
            updater.update()
        return {name: param.array for name, param in sorted(model.namedparams())}

    return check


def _make(network, device_name):
    np.random.seed(0)
    model = L.Classifier(network())
    # This call initializes all parameters on the CPU.
    model(*map(np.stack, zip(*_data()[:2], strict=True)))
    model.to_device(device_name)
    return model


def _with(name: str, value: object, check: Callable[[str], Results]) -> Callable[[str], Results]:
    """Returns a check that runs with an entry of the configuration set to another value."""

    def with_config(device_name: str) -> Results:
        with using_config(name, value):
            return check(device_name)

    return with_config


def _by_cudnn(check: Callable[[str], Results]) -> Callable[[str], Results]:
    """Returns a check that uses cuDNN wherever cuDNN has a plan."""
    return _with("kernels", ("cudnn",), check)


def _on_another_stream(check: Callable[[str], Results]) -> Callable[[str], Results]:
    """Returns a check on a stream that does not wait for the default stream."""

    def on_another_stream(device_name: str) -> Results:
        device = get_device(device_name)
        if not isinstance(device, cuda.GpuDevice):
            return check(device_name)
        with device.create_context(), cuda.Stream(non_blocking=True) as stream:
            results = check(device_name)
            stream.synchronize()
        return results

    return on_another_stream


def _beside_copies(device_name: str) -> Results:
    """Checks copies of batches to the GPU while kernels run; frees batches while kernels are
    pending."""
    draw, device = np.random.RandomState(0), get_device(device_name)
    data = draw.randn(8, 64, 512).astype(np.float32)
    W = device.send(draw.randn(512, 512).astype(np.float32) / 16)
    convert, results = ConcatWithAsyncTransfer(), {}
    with device.create_context():
        for i, rows in enumerate(data):
            x = convert(rows, device)
            for _ in range(4):
                x = device.xp.tanh(x @ W)
            results[f"batch {i}"] = x.sum(axis=0)
            del x
    return results


def _dropout(device_name: str) -> Results:
    """Checks properties of dropout that hold for every mask. The cases of the operation ``drop``
    compare given masks."""
    device = get_device(device_name)
    with device.create_context():
        x = Variable(device.xp.ones((257, 300), np.float32))
        y, other = F.dropout(x, 0.25), F.dropout(x, 0.25)
        F.sum(y).backward()
        kept = y.array != 0
        return {
            "backward has the mask of forward": (y.array == x.grad).all(),
            "the scale": y.array.max(),
            "three of four are kept": abs(kept.mean() - 0.75) < 0.01,  # 0.01 is six deviations
            "another mask each time": (kept != (other.array != 0)).any(),
        }


def _embedding(device_name: str) -> Results:
    draw, device = np.random.RandomState(0), get_device(device_name)
    W = Variable(device.send(draw.randn(50, 8).astype(config.dtype)))
    # Many ids refer to the same rows.
    ids = device.send(draw.randint(0, 5, (6, 40)).astype(np.int32))
    y = F.embed_id(ids, W, ignore_label=4)
    F.sum(y * y).backward()
    return {"value": y.array, "gradient": W.grad}


def _loss_scale(device_name: str) -> Results:
    """Checks training in mixed precision until loss scales overflow and steps are skipped."""
    with using_config("dtype", mixed16):
        model = _make(_mlp, device_name)
        optimizer = optimizers.MomentumSGD(0.01).setup(model)
        optimizer.use_fp32_update()
        optimizer.loss_scaling(interval=4)
        device = get_device(device_name)
        x, t = (device.send(np.stack(rows)) for rows in zip(*_data()))
        for _ in range(24):
            optimizer.update(model, x.astype(np.float16), t)
        return {name: param.array for name, param in sorted(model.namedparams())}


def _beyond(device_name: str) -> Results:
    """Checks functions of arrays with more than 2**31 elements. Of results that have as many rows,
    only the last rows are compared."""
    device = get_device(device_name)
    is_real = isinstance(device, cuda.GpuDevice) and not is_double()
    n_rows = (1 << 21) + 8 if is_real else 16
    with device.create_context():
        if is_real and cuda.cupy.cuda.Device().mem_info[0] < 16 << 30:
            raise NotHere("16 GiB of GPU memory")
        x = device.xp.zeros((n_rows, 1024), np.float16)
        x[-8:] = device.send(np.random.RandomState(0).randn(8, 1024).astype(np.float16))
        return {
            "relu": F.relu(x).array[-8:],
            "softmax": F.softmax(x).array[-8:],
            "maximum": F.max(x, axis=1).array[-8:],
            "sum": F.sum(x, axis=0).array,
        }


def _mlp() -> Sequential:
    hidden = L.Linear(192, 32)
    flat = lambda x: F.cast(F.reshape(x, (len(x), -1)), hidden.W.dtype)
    return Sequential(flat, hidden, F.relu, L.Linear(32, 4))


class _Transformer(Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.layer = L.TransformerEncoderLayer(24, 2, 48, dropout=0.0)
            self.out = L.Linear(24, 4)

    def forward(self, x):
        return self.out(F.mean(self.layer(F.reshape(x, (len(x), 8, 24))), axis=1))


MODELS: dict[str, Callable[[], Link]] = {
    "MLP": _mlp,
    "ConvNet": _ConvNet,
    "LSTM": _Recurrent,
    "transformer": _Transformer,
}
"""Maps names to functions that make models, whose captured steps are compared with eager steps."""


def _six_steps(name, device_name, is_captured):
    device = get_device(device_name)
    with device.create_context():
        model = _make(MODELS[name], device_name)
        optimizer = optimizers.Adam().setup(model)

        def update(x, t):
            optimizer.update(lambda: model(x, t))

        step: Any = update
        if is_captured:
            step = annexes.load("captured", "captured.captured", "the GPU doctor").capture(update)
        for i in range(6):
            step(*(device.send(np.stack(rows)) for rows in zip(*_data()[8 * i : 8 * i + 8])))
        arrays = {key: cuda.to_cpu(param.array) for key, param in sorted(model.namedparams())}
    return arrays, step.reason if is_captured else None


def outcome(find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the result of a function, or its traceback, or why this machine cannot run it.

    Example:
        >>> outcome(lambda: {"found": "all"})
        {'found': 'all'}
    """
    try:
        return find()
    except NotHere as error:
        return {"reason": f"needs {error}"}
    except Exception:
        return {"ok": False, "error": traceback.format_exc()}


def compare_captured(name: str, device_name: str) -> dict[str, object]:
    """Returns whether captured steps train a model in the same way as eager steps.

    Args:
        name: a key of :data:`MODELS`.
        device_name: the device's name, such as ``"@cupy:0"``.

    Returns:
        dict: the items that :func:`compare` returns.

    Example:
        >>> compare_captured("MLP", "@cupy:0")  # doctest: +SKIP
        {'ok': True, 'error': 0.0}
    """

    def find():
        wanted, _ = _six_steps(name, device_name, is_captured=False)
        got, reason = _six_steps(name, device_name, is_captured=True)
        if reason is not None:
            return {"ok": False, "error": f"the step is not captured: {reason}"}
        worst = max(difference(got[key], wanted[key]) for key in wanted)
        return {"ok": worst <= TOLERANCE, "error": worst}

    return outcome(find)


CHECKS: dict[str, Callable[[str], Results]] = {
    "elementwise": _function(lambda x, y: F.tanh(x) * F.sigmoid(y) + F.exp(-(x**2)), (33, 7), (7,)),
    "reductions": _function(lambda x: F.sum(x, axis=1) + F.max(x, axis=1), (33, 65)),
    "matmul": _function(F.matmul, (65, 33), (33, 17)),
    "softmax": _function(F.log_softmax, (33, 65)),
    "convolution": _function(
        lambda x, W: F.convolution_2d(x, W, pad=1), (4, 8, 9, 9), (6, 8, 3, 3)
    ),
    "pooling": _function(lambda x: F.average_pooling_2d(x, 3, 2), (4, 8, 9, 9)),
    "layer normalization": _function(F.layer_normalization, (33, 64), (64,), (64,)),
    "indexing": _function(lambda x: F.get_item(x, (slice(None), [2, 0, 2])), (5, 4)),
    "ConvNet, SGD": _training(_ConvNet, optimizers.MomentumSGD),
    "ConvNet, Adam": _training(_ConvNet, optimizers.Adam),
    "LSTM, Adam": _training(_Recurrent, optimizers.Adam),
    "convolution, half precision": _function(
        lambda x, W: F.convolution_2d(x, W, pad=1), (4, 8, 9, 9), (8, 8, 3, 3), dtype=np.float16
    ),
    "attention, half precision": _function(
        F.scaled_dot_product_attention, *[(2, 4, 64, 32)] * 3, dtype=np.float16
    ),
    "layer normalization by cuDNN": _by_cudnn(
        _function(F.layer_normalization, (32, 64), (64,), (64,))
    ),
    "ConvNet by cuDNN": _by_cudnn(_training(_ConvNet, optimizers.MomentumSGD)),
    "ConvNet on another stream": _on_another_stream(_training(_ConvNet, optimizers.MomentumSGD)),
    "LSTM on another stream": _on_another_stream(_training(_Recurrent, optimizers.Adam)),
    "copies beside kernels": _beside_copies,
    "matmul, transposed and in steps": _function(
        lambda x, y: F.matmul(x.T, y[:, ::2]), (33, 65), (33, 34)
    ),
    "group normalization": _function(
        lambda x, g, b: F.group_normalization(x, 3, g, b), (2, 6, 5, 4), (6,), (6,)
    ),
    "rows of 3,000, half precision": _function(
        lambda x, g, b: F.softmax(F.layer_normalization(x, g, b)),
        (5, 3000),
        (3000,),
        (3000,),
        dtype=np.float16,
    ),
    "rows of 3,000, double precision": _function(
        lambda x, g, b: F.softmax(F.layer_normalization(x, g, b)),
        (5, 3000),
        (3000,),
        (3000,),
        dtype=np.float64,
    ),
    "dropout": _dropout,
    "embedding": _with("dtype", np.float32, _embedding),
    "embedding, half precision": _with("dtype", np.float16, _embedding),
    "embedding, deterministic": _with("cudnn_deterministic", True, _embedding),
    "dynamic loss scale": _loss_scale,
    "MLP, mixed_bf16": _with("dtype", mixed_bf16, _training(_mlp, optimizers.MomentumSGD)),
    "convolution and product, TF32": _with(
        "use_cudnn_tensor_core",
        "always",
        _function(
            lambda x, W: F.matmul(F.convolution_2d(x, W, pad=1), F.convolution_2d(x, W, pad=1)),
            (4, 8, 9, 9),
            (6, 8, 3, 3),
        ),
    ),
    "more than 2**31 elements": _beyond,
}
"""Maps names to functions of a device; the returned arrays must equal the CPU's, to rounding."""

ON_SECOND = ("ConvNet, SGD", "LSTM, Adam")
"""Names of the checks that run on a second GPU, too."""


def compare(check: Callable[[str], Results], device_name: str) -> dict[str, object]:
    """Returns whether a check gives the same results on a device as on the CPU.

    Args:
        check: a value of :data:`CHECKS`.
        device_name: the device's name, such as ``"@cupy:0"``.

    Returns:
        dict: ``ok``, and ``error``: the largest difference relative to the largest number, or the
        traceback as text. If this machine cannot run the check, there is only ``reason``.

    Example:
        >>> compare(CHECKS["matmul"], "@numpy")
        {'ok': True, 'error': 0.0}
    """

    def find():
        with using_config("dtype", np.dtype(np.float32)):
            wanted, got = check("@numpy"), check(device_name)
        worst = float(np.max([difference(cuda.to_cpu(got[k]), wanted[k]) for k in wanted]))
        is_half = any(array.dtype == np.float16 for array in wanted.values())
        return {"ok": worst <= (HALF_TOLERANCE if is_half else TOLERANCE), "error": worst}

    return outcome(find)


def difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """Returns the largest difference, relative to the largest value in ``wanted``; infinite if the
    arrays have different shapes or dtypes, or if ``got`` holds NaN or infinity.

    Example:
        >>> difference(np.array([1.0, 4.0]), np.array([2.0, 4.0]))
        0.25
    """
    if got.dtype != wanted.dtype or got.shape != wanted.shape or not np.isfinite(got).all():
        return np.inf
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def is_double() -> bool:
    """Returns whether CuPy is the test double of mpchain's tests, which computes on the CPU.

    Example:
        >>> if is_double():  # doctest: +SKIP
        ...     print("these times are not a GPU's")
    """
    if not cuda.available:
        return False
    return cuda.cupy.cuda.runtime.getDeviceProperties(0)["name"] == b"double"


def contract() -> list[str] | None:
    """Returns how the names and parameters of the installed CuPy differ from those of the CuPy that
    mpchain was tested with; None without CuPy, or on the test double, which has the same names.

    Example:
        >>> contract()  # doctest: +SKIP
        []
    """
    if not cuda.available or is_double():
        return None
    return cupy_contract.differences(cupy_contract.read(), cupy_contract.known())
