"""L-BFGS, a quasi-Newton method for losses that are the same function of the parameters during an
update."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.backends.cuda import to_cpu
from mpchain.link import Link
from mpchain.optimizer import Optimizer
from mpchain.serializer import AbstractSerializer, Deserializer
from mpchain.variable import Variable

_DECREASE, _CURVATURE, _MOST_TRIALS = 1e-4, 0.9, 25


class LBFGS(Optimizer):
    """Limited-memory BFGS with a line search for the strong Wolfe conditions.

    An update calls the loss function once, and for each step as often as the line search needs, at
    least once. During an update, the loss must therefore be the same function of the parameters:
    use one batch, and no dropout. If no step along the quasi-Newton direction succeeds, the memory
    is cleared, and the step follows the negative gradient; if this step fails too, the update
    ends, and the first such update warns.

    See J. Nocedal and S. Wright, Numerical Optimization, algorithms 3.5, 3.6 and 7.4. A
    :class:`mpchain.distributed.optimizers.MultiNodeOptimizer` of this optimizer takes the same
    steps on all ranks. Rounding errors depend on the number of ranks, and grow over many line
    searches; with ``reproducible=True`` the steps are bitwise the same as in one process. The
    optimizer computes in float64 on the host.

    Args:
        memory: the number of latest steps that define the estimate of the curvature.
        max_iter: the number of steps of an update, which takes fewer steps if a step fails. With
            10, an update needs about half as many calls of the loss function as 10 updates of one
            step.

    Raises:
        ValueError: ``memory`` or ``max_iter`` is not positive.

    Example:
        >>> model = L.Linear(2, 1, nobias=True, initialW=1.0)
        >>> optimizer = optimizers.LBFGS().setup(model)
        >>> for _ in range(4):
        ...     optimizer.update(lambda: F.sum((model.W - np.array([[3, 5]], np.float32)) ** 2))
        >>> model.W.array
        array([[3., 5.]], dtype=float32)
    """

    takes_closure = True
    is_evaluating = False  # If True, the current gradients belong to a step in progress.
    _has_warned = False

    def __init__(self, memory: int = 10, max_iter: int = 1):
        for name, value in (("memory", memory), ("max_iter", max_iter)):
            if value < 1:
                raise ValueError(f"LBFGS: {name} must be at least 1, not {value}")
        self.memory, self.max_iter = memory, max_iter
        self._steps = self._changes = np.zeros((0, 0))

    def setup(self, link: Link) -> "LBFGS":
        super().setup(link)
        self._forget()
        return self

    def add_hook(self, hook: object, name: str | None = None, timing: str = "auto") -> None:
        """Raises TypeError, because a hook would change gradients but not the loss."""
        raise TypeError(
            "LBFGS.add_hook: LBFGS accepts no hooks; add a penalty to the loss function instead"
        )

    def update(
        self, lossfun: Callable[..., Variable] | None = None, *args: Any, **kwds: Any
    ) -> None:
        """Takes ``max_iter`` steps, or fewer if a step fails.

        Args:
            lossfun: function of ``args`` and ``kwds`` that returns the loss; it is called several
                times.

        Raises:
            TypeError: ``lossfun`` is None, or does not return a Variable.
            RuntimeError: :meth:`setup` was not called, a loss scale is set, or the loss is not
                finite at the parameters where the update begins.

        An error of the loss function within a step, or Ctrl-C, leaves the parameters in their
        state before the step.
        """
        self._check_set_up("update")
        if self.is_evaluating:  # a multi-node optimizer has averaged the gradients
            return
        if lossfun is None:
            raise TypeError(
                "LBFGS.update: lossfun is required, because an update calls it several times"
            )

        def evaluate():
            loss = lossfun(*args, **kwds)
            if not isinstance(loss, Variable):
                kind = type(loss).__name__
                raise TypeError(f"LBFGS.update: lossfun must return a Variable, not {kind}")
            self.target.cleargrads()
            loss.backward()
            return loss.array

        self.step(evaluate)

    def step(self, evaluate: Callable[[], Any]) -> None:
        """Takes ``max_iter`` steps, or fewer if a step fails.

        Args:
            evaluate: a function that returns the loss and sets the parameters' gradients.
        """
        if self._loss_scale is not None:
            raise RuntimeError(
                "LBFGS.update: a loss scale is set, but LBFGS computes in float64: remove it by "
                "set_loss_scale(None)"
            )

        def at(x):
            self._put(x)
            self.is_evaluating = True
            try:
                value = float(evaluate())
            finally:
                self.is_evaluating = False
            return value, self._gradient()

        (value, gradient), x = at(None), self._point()
        if not math.isfinite(value):
            raise RuntimeError(f"LBFGS.update: the loss is {value} where the step begins")
        self.t += 1
        try:
            for _ in range(self.max_iter):
                found = self._search_and_step(at, x, value, gradient)
                if found is None:
                    break
                x, value, gradient = found
        # Even after Ctrl-C, parameters must not keep trial values of the line search.
        except BaseException:
            self._put(x)
            raise

    def _search_and_step(self, at, x, value, gradient):
        """Takes a step. Returns the point, the loss and the gradient after the step, or None if no
        step succeeds."""
        if not gradient.any():
            return None
        found = None
        if len(self._steps):
            found = _search(at, x, value, gradient, self._direction(gradient), 1.0)
        if found is None:
            self._forget()
            first = min(1.0, 1 / np.abs(gradient).sum())
            found = _search(at, x, value, gradient, -gradient, first)
        if found is None:
            self._put(x)
            self._warn()
            return None
        new, _, new_gradient = found
        self._put(new)
        self._remember(new - x, new_gradient - gradient)
        return found

    def _warn(self):
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"LBFGS.update: update {self.t} found no smaller loss in the direction of the "
                "negative gradient: the parameters are at a minimum, up to rounding, or the loss "
                "function returns different values for the same parameters",
                RuntimeWarning,
                stacklevel=5,
            )

    def _params(self):
        named = sorted(self.target.namedparams(include_uninit=False))
        return [param for _, param in named if param.update_enabled]

    def _point(self):
        return _flat([param.array for param in self._params()])

    def _gradient(self):
        return _flat([np.zeros(p.shape) if p.grad is None else p.grad for p in self._params()])

    def _put(self, x):
        if x is None:
            return
        end = 0
        for param in self._params():
            begin, end = end, end + param.size
            array = x[begin:end].reshape(param.shape).astype(param.dtype)
            backend.copyto(param.array, array)

    def _forget(self):
        self._steps = self._changes = np.zeros((0, 0))

    def _remember(self, step, change):
        if step @ change > 1e-10 * math.sqrt((step @ step) * (change @ change)):
            kept = slice(1 - self.memory, None) if self.memory > 1 else slice(0, 0)
            old = [v[kept].reshape(-1, step.size) for v in (self._steps, self._changes)]
            self._steps = np.concatenate([old[0], step[None]])
            self._changes = np.concatenate([old[1], change[None]])

    def _direction(self, gradient):
        """Returns the quasi-Newton direction, which the two-loop recursion computes."""
        q, pairs = gradient.copy(), list(zip(self._steps, self._changes))
        factors = []
        for s, y in reversed(pairs):
            factors.append((s @ q) / (s @ y))
            q -= factors[-1] * y
        s, y = pairs[-1]
        q *= (s @ y) / (y @ y)
        for s, y in pairs:
            q += (factors.pop() - (y @ q) / (s @ y)) * s
        return -q

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the counters, and the steps and changes of the gradient that estimate
        the curvature."""
        self._check_set_up("serialize")
        self.t = serializer("t", self.t)
        self.epoch = serializer("epoch", self.epoch)
        # When a file is loaded, only the file has the shapes of these arrays.
        loads = isinstance(serializer, Deserializer)
        self._steps = serializer("steps", None if loads else self._steps)
        self._changes = serializer("changes", None if loads else self._changes)


def _flat(arrays):
    return np.concatenate([to_cpu(x).reshape(-1).astype(np.float64) for x in arrays])


def _search(at, x, value, gradient, direction, first):
    """Returns the point, the loss and the gradient of a step that meets the strong Wolfe
    conditions. If no such step is found, returns those of a step to a smaller loss, or None if
    there is none."""
    slope = gradient @ direction
    if not slope < 0:
        return None

    def trial(length):
        point = x + length * direction
        f, g = at(point)
        return length, f, g @ direction, point, g

    def is_high(new, low):
        too_high = new[1] > value + _DECREASE * new[0] * slope
        return not math.isfinite(new[1]) or too_high or (low[0] > 0 and new[1] >= low[1])

    def is_flat(new):
        return abs(new[2]) <= -_CURVATURE * slope

    low, high, length = (0.0, value, slope, x, gradient), None, first
    for _ in range(_MOST_TRIALS):
        if high is not None:
            length = _between(low, high)
        new = trial(length)
        if is_high(new, low):
            high = new
        elif is_flat(new):
            return new[3], new[1], new[4]
        else:
            if high is None:
                if new[2] >= 0:
                    high = low
            elif new[2] * (high[0] - low[0]) >= 0:
                high = low
            low = new
        if high is None:
            length *= 2
        elif abs(high[0] - low[0]) <= 1e-15 * max(abs(high[0]), abs(low[0])):
            break
    return (low[3], low[1], low[4]) if low[0] > 0 and low[1] < value else None


def _between(low, high):
    """Returns the position of the minimum of the cubic through two trials if it is not close to
    either trial; else the midpoint of the trials."""
    (a, fa, da), (b, fb, db) = low[:3], high[:3]
    middle, margin = (a + b) / 2, 0.1 * abs(b - a)
    if not (math.isfinite(fb) and math.isfinite(db)):
        return middle
    d = da + db - 3 * (fa - fb) / (a - b)
    square = d * d - da * db
    if square < 0:
        return middle
    root = math.copysign(math.sqrt(square), b - a)
    if db - da + 2 * root == 0:
        return middle
    cubic = b - (b - a) * (db + root - d) / (db - da + 2 * root)
    return cubic if min(a, b) + margin <= cubic <= max(a, b) - margin else middle
