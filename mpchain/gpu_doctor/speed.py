"""Measures training steps of mpchain, and of PyTorch as its users usually run it.

The doctor runs each step in a separate process, because mpchain and PyTorch load different CUDA
libraries.
"""

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import mpchain.functions as F
import mpchain.links as L
from mpchain import annexes, optimizers
from mpchain.backend import get_device
from mpchain.backends import cuda
from mpchain.backends.dtypes import is_floating
from mpchain.configuration import mixed16, using_config
from mpchain.gpu_doctor.check import NotHere, is_double
from mpchain.gpu_doctor.machine import Item, seconds_of
from mpchain.link import Chain, Sequential

PRECISIONS = {"single": ("never", np.float32), "TF32": ("always", np.float32)}
PRECISIONS["half"] = "auto", mixed16
"""Maps names to ``use_cudnn_tensor_core`` and ``dtype`` of the configuration."""

N_KERNELS = 25
"""Number of kernels to list, the longest first."""


class Sizes(NamedTuple):
    """The sizes of a model and its batch.

    Attributes:
        batch: the shape of the input.
        width: the number of hidden units, of channels of the first convolution, or of features.
        depths: the number of layers, or of blocks of each stage.
        n_classes: the number of classes or words.
    """

    batch: tuple[int, ...]
    width: int
    depths: tuple[int, ...]
    n_classes: int


SIZES = {
    "MLP": Sizes((64, 784), 256, (2,), 10),
    "transformer": Sizes((8, 1024), 768, (12,), 50257),
    "ResNet-50": Sizes((64, 3, 224, 224), 64, (3, 4, 6, 3), 1000),
}
"""Maps names of models to their sizes; the transformer has the sizes of GPT-2 small."""

SMALL = {
    "MLP": Sizes((8, 16), 16, (2,), 10),
    "transformer": Sizes((2, 8), 16, (2,), 20),
    "ResNet-50": Sizes((2, 3, 32, 32), 4, (1, 1), 10),
}
"""Maps names of models to small sizes, for tests."""


class _Bottleneck(Chain):
    def __init__(self, n_in, n_mid, stride):
        super().__init__()
        n_out = 4 * n_mid
        with self.init_scope():
            self.conv1 = L.Convolution2D(n_in, n_mid, 1, nobias=True)
            self.norm1 = L.BatchNormalization(n_mid)
            self.conv2 = L.Convolution2D(n_mid, n_mid, 3, stride, 1, nobias=True)
            self.norm2 = L.BatchNormalization(n_mid)
            self.conv3 = L.Convolution2D(n_mid, n_out, 1, nobias=True)
            self.norm3 = L.BatchNormalization(n_out)
            if stride > 1 or n_in != n_out:
                self.conv4 = L.Convolution2D(n_in, n_out, 1, stride, nobias=True)
                self.norm4 = L.BatchNormalization(n_out)

    def forward(self, x):
        h = F.relu(self.norm1(self.conv1(x)))
        h = self.norm3(self.conv3(F.relu(self.norm2(self.conv2(h)))))
        return F.relu(h + (self.norm4(self.conv4(x)) if hasattr(self, "conv4") else x))


def _blocks(sizes, make):
    n_in = sizes.width
    for stage, depth in enumerate(sizes.depths):
        n_mid = sizes.width << stage
        for i in range(depth):
            yield make(n_in, n_mid, 2 if stage and not i else 1)
            n_in = 4 * n_mid


def _network(name, sizes):
    width = sizes.width
    if name == "MLP":
        hidden = L.Linear(sizes.batch[1], width), F.relu, L.Linear(width, width), F.relu
        return Sequential(*hidden, L.Linear(width, sizes.n_classes))
    if name == "transformer":
        rows = lambda x: F.reshape(x, (-1, width))
        first, last = L.EmbedID(sizes.n_classes, width), L.Linear(width, sizes.n_classes)
        return Sequential(first, *_layers(sizes), rows, last)
    first = L.Convolution2D(3, width, 7, 2, 3, nobias=True), L.BatchNormalization(width), F.relu
    pool = lambda x: F.max_pooling_2d(x, 3, 2, 1, cover_all=False)
    mean = lambda x: F.mean(x, axis=(2, 3))
    last = L.Linear(4 * (width << len(sizes.depths) - 1), sizes.n_classes)
    return Sequential(*first, pool, *_blocks(sizes, _Bottleneck), mean, last)


def _layers(sizes):
    width = sizes.width
    n_heads = max(width // 64, 2)
    for _ in range(sizes.depths[0]):
        yield L.TransformerEncoderLayer(width, n_heads, 4 * width, dropout=0.0)


def _torch_network(torch, name, sizes):
    nn, width = torch.nn, sizes.width
    if name == "MLP":
        hidden = nn.Linear(sizes.batch[1], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        return nn.Sequential(*hidden, nn.Linear(width, sizes.n_classes))
    if name == "transformer":
        layer = nn.TransformerEncoderLayer(
            width, max(width // 64, 2), 4 * width, dropout=0.0, batch_first=True
        )
        layers = nn.TransformerEncoder(layer, sizes.depths[0], enable_nested_tensor=False)
        embedding = nn.Embedding(sizes.n_classes, width)
        return nn.Sequential(embedding, layers, nn.Linear(width, sizes.n_classes))

    def convolution(n_in, n_out, k, stride=1):
        conv = nn.Conv2d(n_in, n_out, k, stride, k // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(n_out))

    class Bottleneck(nn.Module):
        def __init__(self, n_in, n_mid, stride):
            super().__init__()
            one, two = convolution(n_in, n_mid, 1), convolution(n_mid, n_mid, 3, stride)
            three = convolution(n_mid, 4 * n_mid, 1)
            self.main = nn.Sequential(one, nn.ReLU(), two, nn.ReLU(), three)
            is_same = stride == 1 and n_in == 4 * n_mid
            self.short = nn.Identity() if is_same else convolution(n_in, 4 * n_mid, 1, stride)

        def forward(self, x):
            return torch.relu(self.main(x) + self.short(x))

    last = nn.Linear(4 * (width << len(sizes.depths) - 1), sizes.n_classes)
    return nn.Sequential(
        convolution(3, width, 7, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *_blocks(sizes, Bottleneck),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        last,
    )


def _batch(name, sizes):
    draw = np.random.RandomState(0)
    if name == "transformer":
        x = draw.randint(0, sizes.n_classes, sizes.batch).astype(np.int32)
        return x, x.ravel()
    x = draw.randn(*sizes.batch).astype(np.float32)
    return x, (np.arange(len(x)) % sizes.n_classes).astype(np.int32)


class OwnStep:
    """A training step of mpchain; calling the object runs the step.

    Args:
        name: a key of :data:`SIZES`.
        precision: a key of :data:`PRECISIONS`.
        sizes: the sizes of the model and its batch.
        device_name: the device's name, such as ``"@cupy:0"``.
        is_captured: whether the step is captured.

    Example:
        >>> OwnStep("MLP", "single", SMALL["MLP"], "@numpy")()
    """

    def __init__(
        self, name: str, precision: str, sizes: Sizes, device_name: str, is_captured: bool = False
    ):
        self._device, (self._cores, self._dtype) = get_device(device_name), PRECISIONS[precision]
        with self._context():
            np.random.seed(0)  # both modes must give the same losses
            self.model = L.Classifier(_network(name, sizes))
            self.model.compute_accuracy = False
            self.model.to_device(self._device)
            optimizer = optimizers.MomentumSGD(0.001).setup(self.model)
            x, t = _batch(name, sizes)
            if precision == "half":
                optimizer.use_fp32_update()
                optimizer.loss_scaling(scale=128.0)
                x = x.astype(np.float16) if is_floating(x.dtype) else x
            self._batch = self._device.send(x), self._device.send(t)

        def update(x, t):
            optimizer.update(lambda: self.model(x, t))

        captured = annexes.load("captured", "captured.captured", "the GPU doctor")
        self._update = captured.capture(update) if is_captured else update

    @contextlib.contextmanager
    def _context(self):
        with using_config("dtype", self._dtype), using_config("use_cudnn_tensor_core", self._cores):
            with self._device.create_context():
                yield

    def __call__(self) -> None:
        """Runs one training step."""
        with self._context():
            self._update(*self._batch)

    def loss(self) -> float:
        """Returns the current loss of the batch."""
        with self._context():
            return float(cuda.to_cpu(self.model(*self._batch).array))

    def reason(self) -> str | None:
        """Returns why the latest step was not replayed, if it should have been."""
        return getattr(self._update, "reason", None)


def torch_step(
    name: str,
    precision: str,
    sizes: Sizes,
    device_name: str,
    is_channels_last: bool = False,
) -> Callable[[], Any]:
    """Returns PyTorch's equivalent step: fused optimizers, and autocast for half precision.

    Example:
        >>> step = torch_step("MLP", "single", SMALL["MLP"], "cpu")  # doctest: +SKIP
        >>> step()  # doctest: +SKIP
    """
    import torch

    torch.backends.cudnn.allow_tf32 = precision == "TF32"
    torch.backends.cuda.matmul.allow_tf32 = precision == "TF32"
    torch.backends.cudnn.benchmark = True
    model = _torch_network(torch, name, sizes).to(device_name)
    x, t = (torch.from_numpy(array).to(device_name) for array in _batch(name, sizes))
    if is_channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9, fused=True)
    t = t.long()

    def step():
        optimizer.zero_grad()
        # CPUs have no fast float16.
        half = torch.float16 if device_name == "cuda" else torch.bfloat16
        with torch.autocast(device_name, half, enabled=precision == "half"):
            y = model(x)
            loss = torch.nn.functional.cross_entropy(y, t) if y.ndim == 2 else _loss(torch, y, t)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _loss(torch, y, t):
    return torch.nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), t)


def own_steps(name: str, precision: str, mode: str) -> Iterator[Item]:
    """Yields items that find the time of mpchain's step and its longest kernels.

    Args:
        name: a key of :data:`SIZES`.
        precision: a key of :data:`PRECISIONS`.
        mode: ``"eager"`` or ``"captured"``.

    Example:
        >>> [item for item, _ in own_steps("MLP", "half", "captured")]
        ['step of MLP, half, captured', 'kernels of MLP, half, captured']
    """
    made = []

    def measure():
        sizes = (SMALL if is_double() else SIZES)[name]
        step = OwnStep(name, precision, sizes, "@cupy:0", mode == "captured")
        for _ in range(2 if is_double() else 6):
            step()
        made.append(step)
        pool = cuda.cupy.get_default_memory_pool()
        row = {**_times(step), "loss": step.loss(), "bytes": pool.total_bytes()}
        if mode == "captured" and step.reason() is not None:
            return {"ok": False, "error": f"the step is not captured: {step.reason()}", **row}
        return row

    yield f"step of {name}, {precision}, {mode}", measure
    yield f"kernels of {name}, {precision}, {mode}", lambda: _longest(made)


def _times(step):
    """Returns a step's times as a dict: by the GPU's clock, and until the host has queued it."""
    n = 1 if is_double() else 20
    milliseconds = 1e3 * seconds_of(step, n)
    cuda.cupy.cuda.Device().synchronize()
    begin = time.perf_counter()
    for _ in range(n):
        step()
    host = 1e3 * (time.perf_counter() - begin) / n
    found = f"{milliseconds:.4g} ms ({host:.3g} ms of the host)"
    return {"milliseconds": milliseconds, "host milliseconds": host, "found": found}


def _longest(made):
    """Returns the longest kernels that PyTorch's profiler finds in the process; on the test double,
    the kernels that are launched most often."""
    if not made:
        raise NotHere("the step before, which failed")
    (step,) = made
    if is_double():
        double = cuda.cupy.double
        double.reset()
        step()
        counts: dict[str, int] = {}
        for (kernel, _), n in double.launches.items():
            counts[kernel] = counts.get(kernel, 0) + n
        rows = [[k, n, None] for k, n in sorted(counts.items(), key=lambda item: -item[1])]
    else:
        rows = _profiled(step)
    return {"rows": rows[:N_KERNELS], "found": "; ".join(f"{k[:40]} {n}" for k, n, _ in rows[:3])}


def _profiled(step):
    if importlib.util.find_spec("torch") is None:
        raise NotHere("PyTorch, whose profiler sees all kernels")
    import torch

    if not torch.cuda.is_available():
        raise NotHere(f"a PyTorch that finds the GPU, not {torch.__version__}")
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            step()
        cuda.cupy.cuda.Device().synchronize()
    events = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)
    return [[e.key[:90], e.count // 3, e.self_device_time_total / 3e3] for e in events]


def torch_steps(name: str, precision: str, mode: str) -> Iterator[Item]:
    """Yields an item that measures PyTorch's step, on the CPU if CuPy is the test double.

    Args:
        name, precision: as in :func:`own_steps`.
        mode: ``"eager"`` or ``"channels last"``.

    Example:
        >>> [item for item, _ in torch_steps("MLP", "half", "eager")]
        ['PyTorch: MLP, half, eager']
    """
    yield f"PyTorch: {name}, {precision}, {mode}", lambda: _torch_time(name, precision, mode)


def _torch_time(name, precision, mode):
    if importlib.util.find_spec("torch") is None:
        raise NotHere("PyTorch")
    import torch

    if not (torch.cuda.is_available() or is_double()):
        raise NotHere(f"a PyTorch that finds the GPU, not {torch.__version__}")
    device, sizes = ("cpu", SMALL) if is_double() else ("cuda", SIZES)
    step = torch_step(name, precision, sizes[name], device, mode == "channels last")
    n = 1 if is_double() else 20
    for _ in range(1 if is_double() else 6):
        step()
    row = {"version": torch.__version__}
    if is_double():
        begin = time.perf_counter()
        step()
        milliseconds = 1e3 * (time.perf_counter() - begin)
        return row | {"milliseconds": milliseconds, "found": f"{milliseconds:.4g} ms of the CPU"}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(n):
        step()
    end.record()
    end.synchronize()
    milliseconds = begin.elapsed_time(end) / n
    return row | {"milliseconds": milliseconds, "found": f"{milliseconds:.4g} ms"}
