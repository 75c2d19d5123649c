"""Rules for the tangents of functions that are not elementwise, such as linear functions, products
and normalizations.

A rule is a function of a node, a tangent (or None) for each input, and a flag that says whether
tangents are Variables with a graph or arrays. It returns the tangent of the output, or a list of
tangents for several outputs. Functions without a rule are differentiated twice in reverse instead.
"""

from typing import Any

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.functions.declaring.declaration import registry
from mpchain.functions.declaring.linearity import LINEAR, PRODUCTS
from mpchain.functions.fused_attention import attention_weights, dropout_factors
from mpchain.variable import VariableNode, as_variable

_PADDING = {"pad_with_constants": 1, "pad_sequence": 1}
"""The functions that are linear except for padding values, with the index of the padding value
among the constants. Tangents are padded with 0."""

_WITH_BIAS = {"linear_with_bias": "linear", "convolution_with_bias": "convolution_output"}

_SYMMETRIC = ["softmax", "scaled_softmax"]
"""The names of functions whose Jacobian is symmetric."""

_REDUCTIONS = ["max", "min", "logsumexp"]
"""The names of functions each of whose outputs depends only on elements along the axes that the
first constant gives."""


def spread(t: Any, y: VariableNode) -> Any:
    """Returns a tangent converted to the shape and dtype of the output ``y``.

    Example:
        >>> y = Variable(np.zeros((2, 3)))
        >>> spread(np.ones(3), y.node).shape
        (2, 3)
    """
    if t is not None and t.shape != y.shape:
        t = registry["broadcast_to"].on(t, y.shape)
    if t is not None and t.dtype != y.dtype:
        t = registry["cast"].on(t, y.dtype)
    return t


def _plus(*terms):
    """Returns the sum of the terms that are not None, which broadcast."""
    known = [t for t in terms if t is not None]
    if not known:
        return None
    total = known[0]
    for t in known[1:]:
        total = total + t
    return total


def _filled(function, ts):
    """Returns the tangents, with zeros for None."""
    xp = get_array_module(*[getattr(t, "array", t) for t in ts if t is not None])
    pairs = zip(ts, function.inputs)
    return [xp.zeros(x.shape, x.dtype) if t is None else t for t, x in pairs]


def _again(function, ts, constants):
    declaration = function.declaration
    arguments = (ts,) if declaration.takes_sequence else ts
    return declaration.on(*arguments, *constants)


def _linear(function, ts, keeps):
    return _again(function, _filled(function, ts), function.constants)


def _padding(function, ts, keeps):
    constants, i = list(function.constants), _PADDING[function.declaration.name]
    constants[i] = _zeros(constants[i])
    return _again(function, _filled(function, ts), constants)


def _zeros(value):
    return tuple(map(_zeros, value)) if isinstance(value, tuple) else 0


def _product(function, ts, keeps):
    on = function.declaration.on
    a, b, *_ = function.kept(keeps)
    ta, tb = ts
    of_a = None if ta is None else on(ta, b, *function.constants)
    of_b = None if tb is None else on(a, tb, *function.constants)
    return _plus(of_a, of_b)


def _with_bias(function, ts, keeps):
    """Returns tangents that are computed with a tangent of the bias, which is zeros if None is
    given, so that gradients can be joined.

    Backpropagation then computes the gradient of W for the function and for its tangent as one
    product; see ``sums_over_rows``.
    """
    x, W, *_ = function.kept(keeps)
    tx, tW, tb = ts
    on, constants = function.declaration.on, function.constants
    tb = tb if tb is not None else _filled(function, ts)[2]
    if tx is None and tW is None:  # the bias broadcasts along the second axis, the axis of channels
        return registry["reshape"].on(tb, (-1,) + (1,) * (len(function.outputs[0]().shape) - 2))
    if tx is None:
        return on(x, tW, tb, *constants)
    of_x = on(tx, W, tb, *constants)
    return (
        of_x
        if tW is None
        else of_x + registry[_WITH_BIAS[function.declaration.name]].on(x, tW, *constants)
    )


def _symmetric(function, ts, keeps):
    pull = function.pull_variables if keeps else function.pull_arrays
    return pull((0,), ts)[0]


def _log_softmax(function, ts, keeps):
    (t,), y = ts, function.kept(keeps)[-1]
    return t - registry["sum"].on(t * registry["exp"].on(y), function.constants[0], True)


def _reduction(function, ts, keeps):
    (t,), y = ts, function.outputs[0]()
    ones = get_array_module(getattr(t, "array", t)).ones(y.shape, y.dtype)
    factors = _symmetric(function, [as_variable(ones) if keeps else ones], keeps)
    total = registry["sum"].on(factors * t, function.constants[0], False)
    return registry["reshape"].on(total, y.shape)


def _max_windows(function, ts, keeps):
    _, places, _ = function.kept(keeps)
    return registry["take_from_windows"].on(ts[0], places, *function.constants)


def _inverse(function, ts, keeps):
    y = function.kept(keeps)[-1]
    return -np.matmul(np.matmul(y, ts[0]), y)


def _shifted_and_scaled(function, ts, keeps):
    x, mean, scale, *_ = function.kept(keeps)
    tx, tmean, tscale, tbeta = ts
    moved = tx if tmean is None else _plus(tx, -tmean)
    of_scale = None if tscale is None else (x - mean) * tscale
    return _plus(None if moved is None else moved * scale, of_scale, tbeta)


def _follow_not(*statistics):
    """Ignores the statistics of a batch, because the function has already updated the running
    statistics."""


def _normalization(function, ts, keeps):
    """Returns tangents of a normalization, which is linear in gamma and beta. Its Jacobian with
    respect to x is symmetric except for the factor gamma."""
    declaration, kept, results = function.declaration, list(function.kept(keeps)), []
    if any(t is not None for t in ts[1:]):
        pairs = zip(declaration.constant_names, function.constants)
        constants = [_follow_not if name == "follow" else value for name, value in pairs]
        parameters = _filled(function, ts)[1:]
        results.append(declaration.on(kept[0], *parameters, *constants))
    if ts[0] is not None and declaration.name.endswith("batch_normalization"):
        results.append(_symmetric(function, ts[:1], keeps))
    elif ts[0] is not None:
        gamma, kept[1] = kept[1], _ones(kept[1], keeps)
        gxs = declaration.joint(ts[0], kept, function.constants, function.inputs)
        results.append(gxs[0] * gamma)
    return _plus(*results)


def _ones(x, keeps):
    array = x.array if keeps else x
    ones = get_array_module(array).ones(array.shape, array.dtype)
    return as_variable(ones) if keeps else ones


def _attention(function, ts, keeps):
    q, k, v, *_ = map(as_variable, function.kept(keeps)[:3])
    tq, tk, tv = (None if t is None else as_variable(t) for t in ts)
    scale, is_causal, bias, dropout = function.constants
    options, factors = (scale, is_causal, bias), 1
    weights = attention_weights(q, k, *options)
    if dropout is not None:
        factors = dropout_factors(q, k, v, *options, dropout)
    change = _plus(
        None if tq is None else np.matmul(tq * scale, np.swapaxes(k, -1, -2)),
        None if tk is None else np.matmul(q * scale, np.swapaxes(tk, -1, -2)),
    )
    ty = None if tv is None else np.matmul(weights * factors, tv)
    if change is not None:
        change = change * weights
        change = change - weights * np.sum(change, axis=-1, keepdims=True)
        ty = _plus(ty, np.matmul(change * factors, v))
    assert ty is not None  # at least one input has a tangent
    return ty if keeps else ty.array


RULES = {
    **dict.fromkeys(LINEAR, _linear),
    **dict.fromkeys(_PADDING, _padding),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(_WITH_BIAS, _with_bias),
    **dict.fromkeys(_SYMMETRIC, _symmetric),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(["batch_normalization", "sample_normalization"], _normalization),
    **dict.fromkeys(["rms_normalization", "multi_node_batch_normalization"], _normalization),
    "fused_attention": _attention,
    "inverse": _inverse,
    "log_softmax": _log_softmax,
    "max_windows": _max_windows,
    "shifted_and_scaled": _shifted_and_scaled,
}
"""The rules of declarations, by name."""
