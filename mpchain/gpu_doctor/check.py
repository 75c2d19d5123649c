"""``python -m mpchain.gpu_doctor.check``: compares a GPU with the CPU, and prints JSON.

``mpchain-launch doctor --gpu FILE`` runs it and writes the file.
"""

import io
import json
import traceback
from collections.abc import Callable

import numpy as np

import mpchain.functions as F
import mpchain.links as L
from mpchain import iterators, optimizers, training
from mpchain.backend import get_device
from mpchain.backends import cuda
from mpchain.configuration import using_config
from mpchain.dataset import ConcatWithAsyncTransfer
from mpchain.link import Chain
from mpchain.testing import cupy_contract
from mpchain.utils.runtime_info import print_runtime_info
from mpchain.variable import Variable

TOLERANCE = 2e-3
"""The largest difference that passes, relative to the largest number: float32 by other algorithms,
which may round products to ten bits (TF32)."""

HALF_TOLERANCE = 1e-2
"""The same for float16, whose numbers have ten bits."""

Results = dict[str, np.ndarray]


def _function(
    call: Callable, *shapes: tuple[int, ...], dtype: type = np.float32
) -> Callable[[str], Results]:
    """A check of a function: its value, and the gradients of all arguments."""

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
            # A bias before a normalization has no gradient but rounding errors.
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
    """A check of six iterations of training: the parameters at their end."""

    def check(device_name: str) -> Results:
        model = _make(network, device_name)
        batches = iterators.SerialIterator(_data(), 16, shuffle=False)
        rule = optimizer().setup(model)
        updater = training.StandardUpdater(batches, rule, device=device_name)
        for _ in range(6):
            updater.update()
        return {name: param.array for name, param in sorted(model.namedparams())}

    return check


def _make(network, device_name):
    np.random.seed(0)
    model = L.Classifier(network())
    model(*map(np.stack, zip(*_data()[:2], strict=True)))  # parameters of all shapes, on the CPU
    model.to_device(device_name)
    return model


def _by_cudnn(check: Callable[[str], Results]) -> Callable[[str], Results]:
    """A check that takes cuDNN wherever it has a plan."""

    def by_cudnn(device_name: str) -> Results:
        with using_config("kernels", ("cudnn",)):
            return check(device_name)

    return by_cudnn


def _on_another_stream(check: Callable[[str], Results]) -> Callable[[str], Results]:
    """A check on a stream that does not wait for the usual one."""

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
    """Batches are copied to the GPU beside kernels, and dropped while these are under way."""
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
}
"""Name → function of the device that returns arrays, which must be those of the CPU."""

ON_SECOND = ("ConvNet, SGD", "LSTM, Adam")
"""Names of the checks that run on a second GPU, too."""


def compare(check: Callable[[str], Results], device_name: str) -> dict[str, object]:
    """Returns whether a check gives on a device what it gives on the CPU.

    Args:
        check: the check.
        device_name: such as ``"@cupy:0"``.

    Returns:
        ``ok``, and ``error``: the largest difference relative to the largest number, or the
        traceback as text.

    Example:
        >>> compare(CHECKS["matmul"], "@numpy")
        {'ok': True, 'error': 0.0}
    """
    try:
        with using_config("dtype", np.dtype(np.float32)):
            wanted, got = check("@numpy"), check(device_name)
        errors = [difference(cuda.to_cpu(got[name]), wanted[name]) for name in wanted]
    except Exception:
        return {"ok": False, "error": traceback.format_exc()}
    worst = float(np.max(errors))
    is_half = any(array.dtype == np.float16 for array in wanted.values())
    return {"ok": worst <= (HALF_TOLERANCE if is_half else TOLERANCE), "error": worst}


def difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """Returns the largest difference, relative to the largest number; infinite for other kinds of
    arrays.

    Example:
        >>> difference(np.array([1.0, 4.0]), np.array([2.0, 4.0]))
        0.25
    """
    if got.dtype != wanted.dtype or got.shape != wanted.shape or not np.isfinite(got).all():
        return np.inf
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def is_double() -> bool:
    """Returns whether CuPy is the double of mpchain's tests, which computes on the CPU.

    Example:
        >>> if is_double():  # doctest: +SKIP
        ...     print("these times are not a GPU's")
    """
    if not cuda.available:
        return False
    return cuda.cupy.cuda.runtime.getDeviceProperties(0)["name"] == b"double"


def contract() -> list[str] | None:
    """Returns how the names and parameters of CuPy differ from those of the one that mpchain is
    tested against; None without CuPy, or on its double, which is made of these.

    Example:
        >>> contract()  # doctest: +SKIP
        []
    """
    if not cuda.available or is_double():
        return None
    return cupy_contract.differences(cupy_contract.read(), cupy_contract.known())


def run(device_name: str) -> dict[str, object]:
    """Returns the versions of the libraries, and the result of each check.

    With a second GPU, trainings run there, too, while the first is the current one.

    Args:
        device_name: such as ``"@cupy:0"``.

    Example:
        >>> sorted(run("@numpy"))
        ['GPUs', 'checks', 'contract', 'device', 'is a double', 'versions']
    """
    versions = io.StringIO()
    print_runtime_info(versions)
    found = {name: compare(check, device_name) for name, check in CHECKS.items()}
    if device_name == "@cupy:0" and cuda.device_count() > 1:
        for name in ON_SECOND:
            found[f"{name}, on the second GPU"] = compare(CHECKS[name], "@cupy:1")
    return {
        "device": device_name,
        "GPUs": cuda.device_count(),
        "is a double": is_double(),
        "contract": contract(),
        "versions": versions.getvalue().splitlines(),
        "checks": found,
    }


def main() -> None:
    """Prints what `run` returns for the first GPU, or the reason why there is none.

    Example:
        >>> main()  # doctest: +SKIP
        {"device": "@cupy:0", ...}
    """
    if cuda.available:
        print(json.dumps(run("@cupy:0")))
    else:
        print(json.dumps({"reason": cuda.unavailable_reason()}))


if __name__ == "__main__":
    main()
