"""A table of the links of a model: shapes, parameters, memory and time."""

import dataclasses
import time
from typing import Any

from mpchain.backend import GpuDevice
from mpchain.backends import cuda
from mpchain.configuration import no_backprop_mode, using_config
from mpchain.link import Link
from mpchain.observers import Observer, Span


@dataclasses.dataclass
class Row:
    """A call of a link.

    Attributes:
        path: path of the link in the model, such as ``'/l1'``.
        name: class of the link.
        depth: number of links that contain this link.
        shapes: shapes of the arrays that the call returns.
        n_params: number of the link's parameters, including those of its children.
        n_bytes: size of the returned arrays, in bytes.
        seconds: time of the call.

    Example:
        >>> Row("/l1", "Linear", 1, [(5, 2)], 8, 40, 0.001).shapes
        [(5, 2)]
    """

    path: str
    name: str
    depth: int
    shapes: list[tuple[int, ...]]
    n_params: int
    n_bytes: int
    seconds: float


@dataclasses.dataclass
class ModelSummary:
    """The result of :func:`summary`; ``print`` shows it as a table.

    Attributes:
        rows: the calls of links, in the order in which they began; the model is the first.
        n_params: number of parameters of the model.
        n_params_updated: number of parameters that optimizers update; ``link.disable_update()``
            excludes a link's.
        param_bytes: size of the parameters, in bytes.
        output_bytes: size of the arrays returned by links that call no other link, in bytes.

    Example:
        >>> model = mpchain.Sequential(L.Linear(3, 4), F.relu, L.Linear(4, 2))
        >>> table = mpchain.summary(model, np.zeros((5, 3), np.float32))
        >>> table.n_params, [row.shapes for row in table.rows]
        (26, [[(5, 2)], [(5, 4)], [(5, 2)]])
    """

    rows: list[Row]
    n_params: int
    n_params_updated: int
    param_bytes: int
    output_bytes: int

    def __str__(self) -> str:
        cells = [("link", "class", "output", "parameters", "output size", "time")]
        for row in self.rows:
            path = "  " * row.depth + (row.path.rpartition("/")[2] or "(model)")
            shapes = ", ".join(map(str, row.shapes))
            sizes = f"{row.n_params:,}", _size(row.n_bytes), f"{row.seconds * 1e3:.2f} ms"
            cells.append((path, row.name, shapes, *sizes))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for line in cells:
            columns = list(zip(line, widths, strict=True))
            texts = [f"{text:<{width}}" for text, width in columns[:3]]
            lines.append("  ".join(texts + [f"{text:>{width}}" for text, width in columns[3:]]))
        fixed = self.n_params - self.n_params_updated
        total = f"{self.n_params:,} parameters ({_size(self.param_bytes)})"
        total += f", {fixed:,} of them not updated" if fixed else ""
        return "\n".join([*lines, f"{total}, {_size(self.output_bytes)} of outputs"])


def summary(model: Link, *args: Any, **kwargs: Any) -> ModelSummary:
    """Calls a model and returns a table of its links: shapes, parameters, memory and time.

    The model is called twice, without a graph and with ``config.train`` False; the times are those
    of the second call. As in any call, parameters whose shapes depend on the input are initialized.
    A link that is called several times has several rows. Functions have no rows: their time counts
    for the link whose ``forward`` calls them.

    Args:
        model: the model.
        args, kwargs: the model's arguments, such as a batch.

    Example:
        >>> model = mpchain.Sequential(L.Convolution2D(1, 4, ksize=3), F.relu, L.Linear(None, 10))
        >>> print(mpchain.summary(model, np.zeros((2, 1, 8, 8), np.float32)))
        link     class          output        parameters  output size  ...time
        (model)  Sequential     (2, 10)            1,490        80 B  ... ms
          0      Convolution2D  (2, 4, 6, 6)          40      1.1 KiB  ... ms
          2      Linear         (2, 10)            1,450        80 B  ... ms
        1,490 parameters (5.8 KiB), 1.2 KiB of outputs
    """
    with no_backprop_mode(), using_config("train", False):
        model(*args, **kwargs)
        with _Recorder(model) as recorder:
            model(*args, **kwargs)
    params = [p for p in model.params() if p.is_initialized]
    updated = [p for p in params if p.update_enabled]
    leaves = [
        row
        for row, following in zip(recorder.rows, [*recorder.rows[1:], None], strict=True)
        if following is None or following.depth <= row.depth
    ]
    return ModelSummary(
        recorder.rows,
        sum(p.size for p in params),
        sum(p.size for p in updated),
        sum(p.array.nbytes for p in params),
        sum(row.n_bytes for row in leaves),
    )


class _Recorder(Observer):
    sees_functions = False
    sees_links = True

    def __init__(self, model):
        self._paths = {id(link): path for path, link in model.shownlinks()}
        self.rows: list[Row] = []
        self._open = []

    def begins(self, span: Span) -> None:
        if span.kind != "link":
            return
        _wait(span.thing.device)
        path = self._paths.get(id(span.thing), "?")
        self.rows.append(Row(path, span.name, len(self._open), [], 0, 0, time.perf_counter()))
        self._open.append(self.rows[-1])

    def ends(self, span: Span, begun: Any) -> None:
        if span.kind != "link":
            return
        _wait(span.thing.device)
        row = self._open.pop()
        row.seconds = time.perf_counter() - row.seconds
        arrays = list(_arrays_in(span.result))
        row.shapes = [tuple(array.shape) for array in arrays]
        row.n_bytes = sum(array.size * array.dtype.itemsize for array in arrays)
        row.n_params = sum(p.size for p in span.thing.params(include_uninit=False))


def _wait(device):
    """Waits until a GPU has finished its queued work."""
    if isinstance(device, GpuDevice):
        with device.device:
            cuda.Stream.null.synchronize()


def _arrays_in(value):
    """Yields the arrays and Variables in nested tuples, lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _arrays_in(part)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        yield value


def _size(n_bytes):
    exponent = min(max(n_bytes.bit_length() - 1, 0) // 10, 4)
    if exponent == 0:
        return f"{n_bytes} B"
    return f"{n_bytes / 1024**exponent:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[exponent - 1]}"
