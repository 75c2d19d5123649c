"""What updaters for several devices share: one device's part of an update, and what is reported."""

import contextlib

import numpy as np

from mpchain.backends import cuda
from mpchain.reporter import DictSummary, Reporter, get_current_reporter, report_scope
from mpchain.training.named_parts import as_arguments
from mpchain.variable import Variable


def compute_gradients(model, loss_func, batch, loss_scale):
    """Sets the gradients of ``model`` to those of the loss, times ``loss_scale`` unless None.

    Args:
        model (Link): whose gradients are cleared before.
        loss_func: function that returns the loss.
        batch: its arguments, as a converter returns them.
        loss_scale (float): factor on the gradients, or None.
    """
    model.cleargrads()
    args, kwargs = as_arguments(batch)
    loss = loss_func(*args, **kwargs)
    if not isinstance(loss, Variable):
        raise TypeError(f"the loss function must return a Variable, not {type(loss).__name__}")
    loss.backward(loss_scale=loss_scale)


def reporter_of(model):
    """Returns a reporter that knows the links of ``model`` by the names that a trainer gives to
    those of the main optimizer's target."""
    reporter = Reporter()
    reporter.add_observer("main", model)
    reporter.add_observers("main", model.namedlinks(skipself=True))
    return reporter


def as_host_values(observation):
    """Returns the scalars of an observation (those with weights are pairs), on the host."""

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


def mean_observation(parts):
    """Returns what devices have reported, as means over their samples.

    Args:
        parts: pairs of a number of samples and the observation; what is no scalar, or comes from
            the first device alone, stays as it is there.
    """
    (_, first), *others = parts
    if not others:
        return first
    summary = DictSummary()
    for n_samples, observation in parts:
        values = as_host_values(observation).items()
        summary.add({k: v if isinstance(v, tuple) else (v, n_samples) for k, v in values})
    return first | summary.compute_mean()


def collecting(observation):
    """Context manager: lets the current reporter collect in ``observation``, if there is one."""
    try:
        get_current_reporter()
    except RuntimeError:
        return contextlib.nullcontext()
    return report_scope(observation)
