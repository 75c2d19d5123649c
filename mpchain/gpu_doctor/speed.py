"""``python -m mpchain.gpu_doctor.speed [pytorch]``: times training steps of models, by mpchain or
by PyTorch, and prints a line of JSON for each.

``mpchain-launch doctor --gpu FILE`` runs both. Each is a process, since both load CUDA's libraries.
"""

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers
from mpchain.backend import get_device
from mpchain.backends import cuda
from mpchain.configuration import mixed16, using_config
from mpchain.gpu_doctor.check import is_double
from mpchain.link import Chain, Sequential

N_STEPS = 20
PRECISIONS = {"single": np.float32, "mixed": mixed16}
"""Name → dtype of the configuration. PyTorch's is single without TF32, or autocast to float16."""

N_CLASSES = 10


class Sizes(NamedTuple):
    """How large a model and its batch are.

    Attributes:
        batch: the shape of the input.
        width: the number of features, or of channels of the first convolution.
    """

    batch: tuple[int, ...]
    width: int


SIZES = {
    "MLP": Sizes((256, 784), 1024),
    "residual convolutions": Sizes((64, 3, 32, 32), 64),
    "transformer layer": Sizes((16, 256, 512), 512),
}
"""Model → its sizes."""

SMALL = {
    "MLP": Sizes((8, 16), 16),
    "residual convolutions": Sizes((2, 3, 8, 8), 4),
    "transformer layer": Sizes((2, 8, 16), 16),
}
"""The same for tests."""


class _Block(Chain):
    """Two convolutions and a sum; the first may halve the picture."""

    def __init__(self, n_in, n_out, stride):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(n_in, n_out, 3, stride, 1, nobias=True)
            self.norm1 = L.BatchNormalization(n_out)
            self.conv2 = L.Convolution2D(n_out, n_out, 3, 1, 1, nobias=True)
            self.norm2 = L.BatchNormalization(n_out)
            self.shortcut = L.Convolution2D(n_in, n_out, 1, stride, nobias=True)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def _network(name, sizes):
    width = sizes.width
    if name == "MLP":
        hidden = L.Linear(sizes.batch[1], width), F.relu, L.Linear(width, width), F.relu
        return Sequential(*hidden, L.Linear(width, N_CLASSES))
    if name == "residual convolutions":
        blocks = _Block(sizes.batch[1], width, 1), _Block(width, 2 * width, 2)
        mean = lambda x: F.mean(x, axis=(2, 3))
        return Sequential(*blocks, mean, L.Linear(2 * width, N_CLASSES))
    layer = L.TransformerEncoderLayer(width, n_heads=8, dropout=0.0)
    return Sequential(layer, lambda x: F.mean(x, axis=1), L.Linear(width, N_CLASSES))


def _torch_network(torch, name, sizes):
    nn, width = torch.nn, sizes.width
    if name == "MLP":
        hidden = nn.Linear(sizes.batch[1], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        return nn.Sequential(*hidden, nn.Linear(width, N_CLASSES))

    class Block(nn.Module):
        def __init__(self, n_in, n_out, stride):
            super().__init__()
            self.main = nn.Sequential(
                nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False),
                nn.BatchNorm2d(n_out),
                nn.ReLU(),
                nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False),
                nn.BatchNorm2d(n_out),
            )
            self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False)

        def forward(self, x):
            return torch.relu(self.main(x) + self.shortcut(x))

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(dim=(2, 3) if x.ndim == 4 else 1)

    if name == "residual convolutions":
        blocks = Block(sizes.batch[1], width, 1), Block(width, 2 * width, 2)
        return nn.Sequential(*blocks, Mean(), nn.Linear(2 * width, N_CLASSES))
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, Mean(), nn.Linear(width, N_CLASSES))


def _batch(sizes):
    x = np.random.RandomState(0).randn(*sizes.batch).astype(np.float32)
    return x, (np.arange(len(x)) % N_CLASSES).astype(np.int32)


@contextlib.contextmanager
def mpchain_step(
    name: str, precision: str, sizes: Sizes, device_name: str
) -> Iterator[Callable[[], Any]]:
    """Context manager: yields a function that trains for a step.

    Example:
        >>> with mpchain_step("MLP", "single", SMALL["MLP"], "@numpy") as step:
        ...     step()
    """
    device = get_device(device_name)
    with using_config("dtype", PRECISIONS[precision]), device.create_context():
        model = L.Classifier(_network(name, sizes))
        model.to_device(device)
        optimizer = optimizers.MomentumSGD(0.01).setup(model)
        if precision == "mixed":
            optimizer.use_fp32_update()
            optimizer.loss_scaling(scale=1.0)  # nor does PyTorch scale
        x, t = _batch(sizes)
        x, t = device.send(x.astype(PRECISIONS[precision])), device.send(t)
        yield lambda: optimizer.update(model, x, t)


@contextlib.contextmanager
def torch_step(
    name: str, precision: str, sizes: Sizes, device_name: str
) -> Iterator[Callable[[], Any]]:
    """Does the same with PyTorch.

    Example:
        >>> with torch_step("MLP", "single", SMALL["MLP"], "cpu") as step:  # doctest: +SKIP
        ...     step()
    """
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    model = _torch_network(torch, name, sizes).to(device_name)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x, t = (torch.from_numpy(array).to(device_name) for array in _batch(sizes))
    dtype = torch.float16 if device_name == "cuda" else torch.bfloat16  # what CPUs have

    def step():
        optimizer.zero_grad()
        with torch.autocast(device_name, dtype, enabled=precision == "mixed"):
            loss = torch.nn.functional.cross_entropy(model(x), t.long())
        loss.backward()
        optimizer.step()

    yield step


class _HostEvent:
    """A moment of the host's clock, which has no stream to be recorded in."""

    def record(self):
        self._seconds = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 1e3 * (other._seconds - self._seconds)


def milliseconds(
    step: Callable[[], Any], make_event: Callable[[], Any], n: int = N_STEPS
) -> dict[str, float]:
    """Returns the times of a step.

    Args:
        step: called some times before, too.
        make_event: makes events, as PyTorch's and CuPy's, with a method ``elapsed_time``.
        n: the number of steps.

    Returns:
        ``step``: by the clock of the events; ``host``: until the host has given the GPU its work.

    Example:
        >>> sorted(milliseconds(lambda: None, _HostEvent))
        ['host', 'step']
    """
    for _ in range(1 + n // 4):
        step()
    begin, end = make_event(), make_event()
    begin.record()
    begin.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        step()
    end.record()
    host = time.perf_counter() - start
    end.synchronize()
    return {"step": begin.elapsed_time(end) / n, "host": 1e3 * host / n}


def _cupy_event():
    """CuPy's event, with the method of PyTorch's."""

    class Event(cuda.Event):
        def elapsed_time(self, other):
            return cuda.cupy.cuda.get_elapsed_time(self, other)

    return Event()


def run(
    make_step: Callable, device_name: str, sizes: dict[str, Sizes] = SIZES, n: int = N_STEPS
) -> Iterator[dict[str, Any]]:
    """Yields the times of each model in each precision, or the traceback as ``error``.

    Args:
        make_step: :func:`mpchain_step` or :func:`torch_step`.
        device_name: as these take it.
        sizes: model → its sizes.
        n: the number of steps.

    Example:
        >>> [row["name"] for row in run(mpchain_step, "@numpy", {"MLP": SMALL["MLP"]}, 1)]
        ['MLP, single', 'MLP, mixed']
    """
    make_event = _HostEvent
    if make_step is torch_step:
        import torch

        if device_name == "cuda":
            make_event = lambda: torch.cuda.Event(enable_timing=True)
    elif device_name != "@numpy":
        make_event = _cupy_event
    for name, size in sizes.items():
        for precision in PRECISIONS:
            row = {"name": f"{name}, {precision}"}
            try:
                with make_step(name, precision, size, device_name) as step:
                    row["milliseconds"] = milliseconds(step, make_event, n)
            except Exception:
                row["error"] = traceback.format_exc()
            yield row


def main(library: str = "mpchain") -> None:
    """Prints the times on the first GPU, or the reason why there are none.

    On the tests' double of CuPy, these are times of CPUs, PyTorch's too.

    Args:
        library: ``mpchain`` or ``pytorch``.

    Example:
        >>> main("pytorch")  # doctest: +SKIP
        {"version": "2.13.0"}
        {"name": "MLP, single", "milliseconds": {"step": 0.61, "host": 0.43}}
        ...
    """
    sizes = (SMALL, 1) if is_double() else (SIZES, N_STEPS)
    if library == "mpchain":
        rows = run(mpchain_step, "@cupy:0", *sizes)
    else:
        try:
            import torch
        except ImportError as error:
            print(json.dumps({"reason": f"PyTorch is not installed ({error})"}))
            return
        if not (torch.cuda.is_available() or is_double()):
            print(json.dumps({"reason": f"PyTorch {torch.__version__} finds no GPU"}))
            return
        print(json.dumps({"version": torch.__version__}))
        rows = run(torch_step, "cpu" if is_double() else "cuda", *sizes)
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
