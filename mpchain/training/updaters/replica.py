"""Functions of updaters for several devices: gradients of one device, and means of reports."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.link import Link
from mpchain.reporter import DictSummary, report_scope
from mpchain.training.named_parts import as_arguments
from mpchain.variable import Variable


def compute_gradients(
    model: Link,
    loss_func: Callable[..., Variable],
    make_batch: Callable[[], Any],
    loss_scale: float | None,
    scope: Callable[[dict[str, Any]], contextlib.AbstractContextManager],
) -> dict[str, Any]:
    """Sets the gradients of ``model`` to the gradients of the loss, times ``loss_scale``.

    Args:
        model: the model, whose gradients are cleared first.
        loss_func: function that returns the loss.
        make_batch: function that returns the arguments of ``loss_func``, as a converter does.
        loss_scale: factor of the gradients; None means 1.
        scope: function of a dict that returns a context manager, which collects reports in the
            dict.

    Returns:
        A dict of the reported values.

    Example:
        >>> model, batch = L.Linear(2, 1), np.ones((3, 2), np.float32)
        >>> compute_gradients(model, lambda x: F.sum(model(x)), lambda: batch, None, collecting)
        {}
        >>> model.W.grad
        array([[3., 3.]], dtype=float32)
    """
    observation = {}
    with scope(observation):
        batch = make_batch()
        model.cleargrads()
        args, kwargs = as_arguments(batch)
        loss = loss_func(*args, **kwargs)
        if not isinstance(loss, Variable):
            raise TypeError(f"the loss function must return a Variable, not {type(loss).__name__}")
        loss.backward(loss_scale=loss_scale)
    return observation


def as_host_values(observation: dict[str, Any]) -> dict[str, Any]:
    """Returns the scalars of an observation, in host memory; values with weights are pairs.

    Example:
        >>> as_host_values({"loss": Variable(np.array(2.0)), "image": np.zeros((3, 3))})
        {'loss': 2.0}
    """

    def on_host(value):
        if isinstance(value, tuple):
            return tuple(map(on_host, value))
        value = cuda.to_cpu(getattr(value, "array", value)) if _is_array(value) else value
        return value.item() if isinstance(value, (np.ndarray, np.generic)) else value

    def is_scalar(value):
        if isinstance(value, tuple):
            return len(value) == 2 and all(map(is_scalar, value))
        return np.isscalar(value) or getattr(value, "shape", None) == ()

    return {name: on_host(value) for name, value in observation.items() if is_scalar(value)}


def _is_array(value):
    value = getattr(value, "array", value)
    return isinstance(value, np.ndarray) or cuda.is_gpu_array(value)


def mean_observation(parts: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Returns the means of the devices' reported values over their samples.

    Args:
        parts: pairs of a number of samples and an observation. Values that are not scalars are
            those of the first device.

    Example:
        >>> mean_observation([(3, {"loss": 1.0}), (1, {"loss": 5.0})])
        {'loss': 2.0}
    """
    (_, first), *others = parts
    if not others:
        return first
    summary = DictSummary()
    for n_samples, observation in parts:
        values = as_host_values(observation).items()
        summary.add({k: v if isinstance(v, tuple) else (v, n_samples) for k, v in values})
    return first | summary.compute_mean()


def collecting(observation: dict[str, Any]) -> contextlib.AbstractContextManager:
    """Context manager: makes the current reporter, if there is one, collect in ``observation``.

    Example:
        >>> observation = {}
        >>> with mpchain.Reporter(), collecting(observation):
        ...     mpchain.report({"loss": 2.0})
        >>> observation
        {'loss': 2.0}
    """
    try:
        return report_scope(observation)
    except RuntimeError:  # there is no current reporter
        return contextlib.nullcontext()
