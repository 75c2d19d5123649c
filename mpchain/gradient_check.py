"""Checks derivatives of any order against finite differences.

The checks use random directions. :func:`check_backward` compares the derivative of x -> <gy, f(x)>
along one direction v, which backpropagation computes, with a difference of f at two points on the
line x + t v. The comparison takes one backward and three forward passes for any number of elements;
but for tolerances and rounding, a wrong gradient passes with probability zero.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mpchain import backend, backprop
from mpchain import functions as F
from mpchain.backends import cuda
from mpchain.backends.dtypes import is_bfloat16, is_floating
from mpchain.typing import Array, DTypeLike
from mpchain.variable import Parameter, Variable, as_array

_Arrays = Array | Sequence[Array | None] | None
_Parameters = Parameter | Sequence[Parameter]


class NondifferentiableError(Exception):
    """Raised when the function has a kink or a jump between the points of the differences.

    Example:
        >>> from mpchain.gradient_check import check_backward
        >>> x, gy = np.array([1e-4]), np.ones(1)
        >>> check_backward(F.relu, x, gy, detect_nondifferentiable=True)
        Traceback (most recent call last):
        mpchain.gradient_check.NondifferentiableError: the function is not differentiable here: ...
    """


def assert_allclose(
    x: ArrayLike | Variable,
    y: ArrayLike | Variable,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    verbose: bool = True,
) -> None:
    """Raises AssertionError unless |x - y| <= atol + rtol |y| for all elements.

    Args:
        x, y: NumPy or CuPy arrays, Variables, or values that NumPy converts to arrays; ``x`` and
            ``y`` may be on different devices.
        atol, rtol: absolute tolerance, and tolerance relative to ``y``.
        verbose: whether the message shows the arrays.

    Example:
        >>> testing.assert_allclose(F.exp(np.zeros(2)), [1.0, 1.0])
    """
    actual, desired = (cuda.to_cpu(as_array(array)) for array in (x, y))
    try:
        np.testing.assert_allclose(actual, desired, atol=atol, rtol=rtol, verbose=verbose)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_largest_excess(actual, desired, atol, rtol)}") from None


def _largest_excess(x, y, atol, rtol):
    are_numbers = all(z.dtype.kind in "fiub" or is_bfloat16(z.dtype) for z in (x, y))
    if x.shape != y.shape or not are_numbers:
        return f"assert_allclose failed: {_described(x)} and {_described(y)}"
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    excess = np.nan_to_num(abs(x - y) - (atol + rtol * abs(y)), nan=np.inf)
    i = np.unravel_index(excess.argmax(), x.shape)
    i = tuple(map(int, i))
    return (
        f"assert_allclose failed most at index {i}: x[i] = {x[i]}, y[i] = {y[i]}, "
        f"|x[i] - y[i]| = {abs(x[i] - y[i])}, tolerance {atol + rtol * abs(y[i])}"
    )


def _described(array):
    return f"{tuple(array.shape)}:{array.dtype}"


def numerical_grad(
    f: Callable,
    inputs: Sequence,
    grad_outputs: Sequence,
    eps: float = 1e-3,
    detect_nondifferentiable: bool = False,
    diff_atol: float = 0,
    diff_rtol: float = 1e-2,
    center_outputs: Sequence | None = None,
) -> list[Array]:
    """Computes gradients of sum(<grad_output, output>) by central differences, element by element.

    Args:
        f: function without arguments, which computes a tuple of arrays from ``inputs``.
        inputs: tuple of floating-point arrays, which are modified during the computation and then
            restored.
        grad_outputs: tuple of arrays, numbers or None (no gradient), one per output.
        eps: half the distance of the two points of a central difference.
        detect_nondifferentiable: whether to look for kinks. A parabola is fitted to five points on
            the line, and no output may be further from the parabola than diff_atol + diff_rtol *
            (range of the output), up to rounding.
        diff_atol, diff_rtol: the tolerances of ``detect_nondifferentiable``.
        center_outputs: the outputs for the given inputs, if they have been computed already.

    Returns:
        list of arrays of the shapes and dtypes of the inputs.

    Raises:
        NondifferentiableError: see ``detect_nondifferentiable``.
        RuntimeError: an input is not of a floating-point dtype.
        ValueError: ``grad_outputs`` does not have one element per output.

    Example:
        >>> x = np.array([1.0, 2.0])
        >>> mpchain.gradient_check.numerical_grad(lambda: (x**2,), (x,), (np.ones(2),))[0].round(6)
        array([2., 4.])
    """
    tolerances = (diff_atol, diff_rtol) if detect_nondifferentiable else None
    center = center_outputs and [_on_host(y) for y in center_outputs]
    gradients = []
    for i, x in enumerate(inputs):
        if not is_floating(x.dtype):
            raise RuntimeError(
                f"numerical_grad: inputs must be floating-point, but inputs[{i}] is {x.dtype}"
            )
        gradients.append(gx := x.copy())
        for index in np.ndindex(x.shape):
            original = float(x[index])
            at = functools.partial(_with_element_moved, f, x, index, original)
            difference = _difference(at, grad_outputs, eps, tolerances, center)
            # This computes the actual step in the dtype of x, after rounding.
            upper, lower = np.array([original + eps, original - eps], x.dtype).astype(np.float64)
            gx[index] = difference / (upper - lower)
    return gradients


def _with_element_moved(f, x, index, original, t):
    x[index] = original + t
    try:
        return [_on_host(y) for y in f()]
    finally:
        x[index] = original


def _on_host(y):
    """Returns a NumPy array with the values of an array."""
    return np.array(cuda.to_cpu(as_array(y)))


def _difference(at, grad_outputs, eps, tolerances, center=None):
    """Returns the change of sum(<grad_output, output>) from -eps to eps."""
    lower, upper = at(-eps), at(eps)
    if len(lower) != len(grad_outputs):
        raise ValueError(
            f"grad_outputs must have a gradient for each output: {len(lower)} outputs, "
            f"{len(grad_outputs)} gradients"
        )
    if tolerances is not None:
        samples = lower, at(-eps / 2), center or at(0.0), at(eps / 2), upper
        for i, ys in enumerate(zip(*samples)):
            _check_smoothness(i, ys, eps, *tolerances)
    return sum(
        float(np.sum(_on_host(gy) * (high.astype(np.float64) - low)))
        for gy, low, high in zip(grad_outputs, lower, upper)
        if gy is not None
    )


def _check_smoothness(output, ys, eps, diff_atol, diff_rtol):
    if not is_floating(ys[0].dtype):
        return
    rounding = 4 * np.finfo(ys[0].dtype).eps
    y = np.array(ys, np.float64)
    # The residual of the fit is a combination of these two polynomials, which are orthogonal to all
    # parabolas on the five points.
    cubic, quartic = (np.tensordot(p, y, 1) for p in ([-1, 2, 0, -2, 1], [1, -4, 6, -4, 1]))
    with np.errstate(invalid="ignore"):
        residual = np.sqrt((cubic**2 / 10 + quartic**2 / 70) / 5)
        tolerance = diff_atol + diff_rtol * np.ptp(y, axis=0) + rounding * abs(y).max(axis=0)
        smooth = residual <= tolerance
    if not smooth.all():
        i = tuple(map(int, np.argwhere(~smooth)[0]))
        values = ", ".join(map(str, y[:, *i]))
        raise NondifferentiableError(
            f"the function is not differentiable here: element {i} of output {output} takes the "
            f"values {values} at -eps, -eps/2, 0, eps/2, eps (eps={eps}); residual of a parabola "
            f"{residual[i]}, tolerance {tolerance[i]}"
        )


def _as_tuple(values) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


class _Subject:
    """A function, with the inputs and parameters by which the function is differentiated."""

    def __init__(self, check, func, x_data, params, no_grads):
        self.check, self.func = check, func
        self.xs, self.params = _as_tuple(x_data), _as_tuple(params)
        if no_grads is None:
            no_grads = [x is not None and not is_floating(x.dtype) for x in self.xs]
        no_grads = _as_tuple(no_grads)
        if len(no_grads) != len(self.xs):
            raise ValueError(
                f"{check}: no_grads must have a value for each of the {len(self.xs)} inputs, "
                f"but has {len(no_grads)}"
            )
        self.no_grads = [x is None or bool(no) for x, no in zip(self.xs, no_grads)]

    @property
    def points(self):
        """The arrays of the differentiated inputs, then the arrays of the parameters."""
        xs = [x for x, no in zip(self.xs, self.no_grads) if not no]
        return xs + [p.array for p in self.params]

    @contextlib.contextmanager
    def at(self, points, dtype=None):
        """Context manager: calls the function at ``points``; yields the outputs, the Variables of
        the differentiated inputs and parameters, and the other inputs by index.

        Args:
            points: arrays like :attr:`points`.
            dtype: the dtype to which other floating-point inputs are cast.
        """
        points = iter(points)
        xs = []
        for x, no in zip(self.xs, self.no_grads):
            x = _cast(x, dtype) if no else next(points)
            xs.append(None if x is None else Variable(x))
        originals = [p.array for p in self.params]
        try:
            for p, array in zip(self.params, points):
                p.array = array
            ys = _as_tuple(self.func(*xs))
            for y in ys:
                if not isinstance(y, Variable):
                    raise TypeError(
                        f"{self.check}: func must return Variables, not {type(y).__name__}"
                    )
            places = [x for x, no in zip(xs, self.no_grads) if not no] + list(self.params)
            yield ys, places, {i: x for i, x in enumerate(xs) if self.no_grads[i] and x is not None}
        finally:
            for p, array in zip(self.params, originals):
                p.array = array

    def gradients(self, y_grad):
        """Returns the gradients of the differentiated inputs and parameters by backpropagation, and
        the gradients of the outputs."""
        with self.at(self.points) as (ys, places, others):
            gys = _grad_outputs(self.check, ys, y_grad)
            gxs = _grad(ys, [*places, *others.values()], gys)
            for i, gx in zip(others, gxs[len(places) :]):
                if gx is not None:
                    raise RuntimeError(
                        f"{self.check}: the gradient of inputs[{i}] must be None, "
                        "because no_grads says that the input has no gradient, or the input's "
                        "dtype is not floating-point"
                    )
            return gxs[: len(places)], gys

    def moved(self, directions, t, dtype=None):
        """Returns the arrays x + t v, where v are the directions."""
        with np.errstate(over="ignore"):
            points = [as_array(x + t * v) for x, v in zip(self.points, directions)]
            return [y.astype(dtype or x.dtype) for x, y in zip(self.points, points)]


def _cast(x, dtype):
    return x if dtype is None or x is None or not is_floating(x.dtype) else x.astype(dtype)


def _grad_outputs(check, ys, y_grad):
    if y_grad is None:
        if len(ys) != 1 or ys[0].shape != ():
            raise ValueError(
                f"{check}: y_grad may be None only for a loss, one output of shape (); "
                f"the outputs are {', '.join(map(_described, ys))}"
            )
        return (ys[0].xp.ones_like(ys[0].array),)
    gys = _as_tuple(y_grad)
    if len(gys) != len(ys) or any(
        gy is not None and (gy.shape, gy.dtype) != (y.shape, y.dtype) for y, gy in zip(ys, gys)
    ):
        given = ", ".join("None" if gy is None else _described(gy) for gy in gys)
        raise ValueError(
            f"{check}: y_grad must have the shapes and dtypes of the outputs.\n"
            f"outputs: {', '.join(map(_described, ys))}\n"
            f"y_grad:  {given}"
        )
    return gys


def _grad(ys, xs, gys, **options):
    """Does the same as :func:`mpchain.grad`, but ignores outputs whose gradient is None."""
    pairs = [(y, gy) for y, gy in zip(ys, gys) if gy is not None]
    if not pairs:
        return [None] * len(xs)
    ys, gys = zip(*pairs)
    return backprop.grad(ys, xs, gys, **options)


def _direction(points):
    """Returns a random vector of length one without tiny elements, divided into arrays of the
    points' shapes."""
    parts = [np.random.uniform(-1, 1, x.shape) for x in points]
    parts = [np.where(v < 0, v - 0.1, v + 0.1) for v in parts]
    length = np.sqrt(sum(np.sum(v * v) for v in parts)) or 1.0
    return [_send_to(x, v / length) for x, v in zip(points, parts)]


def _send_to(like, array):
    return backend.get_device_from_array(like).send(array)


def check_backward(
    func: Callable,
    x_data: _Arrays,
    y_grad: _Arrays,
    params: _Parameters = (),
    eps: float = 1e-3,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    no_grads: object = None,
    dtype: DTypeLike | None = None,
    detect_nondifferentiable: bool = False,
) -> None:
    """Compares gradients by backpropagation with central differences, in one random direction.

    Args:
        func: a function or link that takes Variables and returns a Variable or a tuple of
            Variables.
        x_data: the inputs, an array or tuple of arrays; None elements are passed to ``func``
            unchanged.
        y_grad: the gradients of the outputs, an array or tuple of arrays of the outputs' shapes and
            dtypes; None elements mean no gradient. None means 1, for a loss of shape ().
        params: a Parameter or a tuple of Parameters that ``func`` uses; their gradients are checked
            too.
        eps: half the distance of the two points of the central difference, along a direction of
            length one.
        atol, rtol: tolerances.
        no_grads: for each input, whether it has no gradient; the check also fails if such an input
            gets a gradient. None means that inputs whose dtype is not floating-point have no
            gradient.
        dtype: the dtype to which inputs and parameters are cast for the differences: float64 makes
            the differences precise even if the inputs are float16. The gradients are computed
            without a cast.
        detect_nondifferentiable: whether to raise NondifferentiableError near kinks and jumps.

    Raises:
        AssertionError: gradients and differences disagree.
        RuntimeError: an input in ``no_grads`` has a gradient.
        NondifferentiableError: see ``detect_nondifferentiable``.
        TypeError: ``func`` does not return Variables.
        ValueError: an argument does not fit the function.

    Example:
        >>> x, gy = np.random.randn(2, 3), np.random.randn(2, 3)
        >>> mpchain.gradient_check.check_backward(F.sigmoid, x, gy)
    """
    if dtype is not None and np.dtype(dtype).kind != "f":
        raise ValueError(f"check_backward: dtype must be floating-point, not {np.dtype(dtype)}")
    subject = _Subject("check_backward", func, x_data, params, no_grads)
    gxs, gys = subject.gradients(y_grad)
    directions = _direction(subject.points)

    def at(t):
        with subject.at(subject.moved(directions, t, dtype), dtype) as (ys, _, _):
            return [_on_host(y) for y in ys]

    tolerances = (0, rtol) if detect_nondifferentiable else None
    numeric = _difference(at, gys, eps, tolerances) / (2 * eps)
    upper, lower = (subject.moved(directions, t, dtype) for t in (eps, -eps))
    analytic = 0.0
    for gx, high, low, v in zip(gxs, upper, lower, directions):
        if gx is not None:
            with np.errstate(invalid="ignore"):
                step = _on_host(high).astype(np.float64) - _on_host(low)
            # The differences leave NaN and infinities unchanged, so the gradients of these elements
            # must be zero.
            step = np.where(np.isfinite(step), step, 2 * eps * _on_host(v))
            analytic += float(np.sum(_on_host(gx) * step)) / (2 * eps)
    if not abs(numeric - analytic) <= atol + rtol * abs(analytic):
        shown = _listing(inputs=subject.points, grad_outputs=gys, directions=directions)
        raise AssertionError(
            f"check_backward failed (eps={eps} atol={atol} rtol={rtol})\n{shown}"
            f"gradients (numeric):  {numeric}\ngradients (backward): {analytic}"
        )


def _listing(**groups):
    return "".join(
        f"{name}[{i}]:\n{value}\n"
        for name, values in groups.items()
        for i, value in enumerate(values)
    )


def check_double_backward(
    func: Callable,
    x_data: _Arrays,
    y_grad: _Arrays,
    x_grad_grad: _Arrays,
    params: _Parameters = (),
    params_grad_grad: _Arrays = (),
    eps: float = 1e-3,
    atol: float = 1e-4,
    rtol: float = 1e-3,
    no_grads: object = None,
    dtype: DTypeLike | None = None,
    detect_nondifferentiable: bool = False,
) -> None:
    """Compares second derivatives by backpropagation with central differences, in one random
    direction.

    The check is :func:`check_backward` applied to the function that takes inputs and gradients of
    outputs, and computes the gradients of inputs and parameters.

    Args:
        func, x_data, y_grad: as for :func:`check_backward`.
        x_grad_grad: the gradients of the inputs' gradients, an array or tuple of arrays, one per
            input or per input that has a gradient; None elements mean no gradient.
        params: as for :func:`check_backward`.
        params_grad_grad: the gradients of the parameters' gradients, one per parameter.
        eps, atol, rtol, no_grads, dtype, detect_nondifferentiable: as for :func:`check_backward`.

    Raises:
        AssertionError, RuntimeError, NondifferentiableError, ValueError: see
            :func:`check_backward`.

    Example:
        >>> x, gy, ggx = np.random.randn(3, 2, 3)
        >>> mpchain.gradient_check.check_double_backward(F.sigmoid, x, gy, ggx)
    """
    subject = _Subject("check_double_backward", func, x_data, params, no_grads)
    n = len(subject.xs)
    gys = () if y_grad is None else _as_tuple(y_grad)
    ggxs = _as_tuple(x_grad_grad)
    if len(ggxs) == n:
        ggxs = tuple(ggx for ggx, no in zip(ggxs, subject.no_grads) if not no)
    ggxs += _as_tuple(params_grad_grad)

    def first_order(*arguments):
        xs, gys = arguments[:n], arguments[n:]
        ys = _as_tuple(func(*xs))
        places = [x for x, no in zip(xs, subject.no_grads) if not no] + list(subject.params)
        gys = _grad_outputs("check_double_backward", ys, gys or None)
        gxs = _grad(ys, places, gys, enable_double_backprop=True)
        return tuple(
            Variable(x.xp.zeros_like(x.array), requires_grad=False) if gx is None else gx
            for x, gx in zip(places, gxs)
        )

    try:
        options = params, eps, atol, rtol, subject.no_grads + [gy is None for gy in gys], dtype
        check_backward(first_order, subject.xs + gys, ggxs, *options, detect_nondifferentiable)
    except AssertionError as error:
        shown = _listing(input=subject.xs, grad_output=gys, grad_grad_input=ggxs)
        raise AssertionError(
            f"check_double_backward failed (eps={eps} atol={atol} rtol={rtol})\n{shown}\n{error}"
        ) from None


def check_order(
    func: Callable,
    x_data: _Arrays,
    order: int,
    y_grad: _Arrays = None,
    params: _Parameters = (),
    no_grads: object = None,
    eps: float = 1e-3,
    atol: float = 1e-6,
    rtol: float = 1e-6,
) -> None:
    """Compares derivatives of one order with differences of the order below, in random directions.

    With D_v f = <grad f, v>, the derivative D_vn ... D_v2 D_v1 <y_grad, f> is compared with a
    five-point difference, whose error is of order eps ** 4. All values are computed in float64.

    Args:
        func, x_data: as for :func:`check_backward`.
        order: the order of the derivative, from 1.
        y_grad: weights of the outputs; None means random weights between 0.5 and 1.5.
        params, no_grads: as for :func:`check_backward`.
        eps: step of the differences; the directions' elements are between -1 and 1.
        atol, rtol: tolerances; ``rtol`` is relative to the larger one of the derivative and the
            derivative of the order below.

    Raises:
        AssertionError: a derivative and a difference disagree.

    Example:
        >>> mpchain.gradient_check.check_order(F.sigmoid, np.random.randn(2, 3), order=3)
    """
    subject = _Subject("check_order", func, x_data, params, no_grads)
    places = subject.points
    vs = [[_send_to(x, np.random.uniform(-1, 1, x.shape)) for x in places] for _ in range(order)]
    weights = [] if y_grad is None else [w.astype(np.float64) for w in _as_tuple(y_grad)]

    def derivatives(n, t):
        """Returns the derivatives of orders up to n at the point x + t v, where v is the last
        direction."""
        with subject.at(subject.moved(vs[-1], t, np.float64), np.float64) as (ys, xs, _):
            if not weights:
                weights.extend(_send_to(y, np.random.uniform(0.5, 1.5, y.shape)) for y in ys)
            value = F.add(*(F.sum(y * w) for y, w in zip(ys, weights)))
            values = [float(value.array)]
            for v in vs[:n]:
                gxs = value.requires_grad and backprop.grad(
                    [value], xs, enable_double_backprop=True
                )
                terms = [F.sum(gx * w) for gx, w in zip(gxs or (), v) if gx is not None]
                if not terms:
                    return values + [0.0] * (n + 1 - len(values))
                value = F.add(*terms)
                values.append(float(value.array))
            return values

    below, exact = derivatives(order, 0.0)[-2:]
    near, far = (
        derivatives(order - 1, t)[-1] - derivatives(order - 1, -t)[-1] for t in (eps, 2 * eps)
    )
    numeric = (8 * near - far) / (12 * eps)
    if not abs(numeric - exact) <= atol + rtol * max(abs(exact), abs(below)):
        raise AssertionError(
            f"check_order failed: the derivative of order {order} is {exact}, but {numeric} by "
            f"differences of order {order - 1} (eps={eps} atol={atol} rtol={rtol})\n"
            f"{_listing(inputs=places)}"
        )
