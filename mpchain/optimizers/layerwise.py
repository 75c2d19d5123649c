"""Optimizers with a separate step size for each parameter."""

import math
from typing import Any, Self

import numpy as np

from mpchain.kernels.steps import square_sum, take_step
from mpchain.link import Link
from mpchain.optimizer import GradientMethod
from mpchain.optimizers.sgd import SGDRule
from mpchain.typing import Array
from mpchain.update_rule import UpdateRule, square_sums
from mpchain.variable import Parameter


class LAMBRule(UpdateRule):
    """Update rule of :class:`LAMB`.

    >>> LAMBRule().states
    ('m', 'v')
    """

    hyperparameters = {
        "alpha": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-6,
        "weight_decay_rate": 0,
    }
    states = ("m", "v")

    def scalars(self) -> dict[str, Any]:
        values = super().scalars()
        del values["alpha"]
        values["correction1"] = 1 - values["beta1"] ** self.t
        values["correction2"] = 1 - values["beta2"] ** self.t
        return values

    @staticmethod
    def direct(
        d: Array,
        g: Array,
        m: Array,
        v: Array,
        p: Array,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay_rate: float,
        correction1: float,
        correction2: float,
    ) -> tuple[Array, ...]:
        """Computes the direction ``d`` of the step, elementwise."""
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g * g - v)
        d = (m / correction1) / (np.sqrt(v / correction2) + eps)
        if weight_decay_rate:
            d += weight_decay_rate * p
        return d, m, v, p

    def _take_step(self, param):
        p, m, v = param.array, self.state["m"], self.state["v"]
        direction = param.xp.empty_like(p, dtype=m.dtype)
        take_step(self.direct, direction, param.grad, [m, v, p], self.scalars)
        p_norm, d_norm = map(math.sqrt, square_sums([param] * 2, [p, direction]).tolist())
        ratio = p_norm / d_norm if p_norm > 0 and d_norm > 0 else 1.0
        lr = float(self.hyperparam.alpha) * ratio
        take_step(SGDRule.step, p, direction, [], lambda: {"lr": lr})


class LAMB(GradientMethod):
    """LAMB: takes steps in the direction of Adam's step, with lengths proportional to the norm of
    the parameter.

    d = m̂ / (√v̂ + eps) + weight_decay_rate p, where m̂ and v̂ are the m and v of :class:`Adam`,
    corrected for bias; p ← p - alpha ‖p‖ / ‖d‖ d, without the quotient if a norm is zero.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.LAMB(alpha=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.9])

    Args:
        alpha: learning rate: the length of a step relative to the norm of the parameter.
        beta1, beta2: decay rates of m and v.
        eps: added to the divisor.
        weight_decay_rate: the factor of p in d.

    See Y. You et al., Large batch optimization for deep learning: training BERT in 76 minutes,
    ICLR 2020.
    """

    rule = LAMBRule


class AdafactorRule(UpdateRule):
    """Update rule of :class:`Adafactor`.

    >>> AdafactorRule().states
    ()
    """

    hyperparameters = {
        "lr": 0.01,
        "decay": 0.8,
        "eps1": 1e-30,
        "eps2": 1e-3,
        "threshold": 1.0,
        "weight_decay_rate": 0,
    }

    def init_state(self, param: Parameter) -> None:
        dtype = np.promote_types(param.dtype, np.float32)
        n_rows, n_columns = _as_matrix(param.array).shape
        with param.device.create_context():
            self.state["row"] = param.xp.zeros((n_rows, 1), dtype)
            self.state["column"] = param.xp.zeros((1, n_columns), dtype)

    def _take_step(self, param):
        h, row, column = self.scalars(), self.state["row"], self.state["column"]
        if param.size == 0:
            return
        p = param.array
        g = _as_matrix(param.grad).astype(row.dtype, copy=False)
        square = g * g
        square += h["eps1"]
        fresh = self.t ** -h["decay"]
        row += fresh * (square.mean(axis=1, keepdims=True) - row)
        column += fresh * (square.mean(axis=0, keepdims=True) - column)
        update = np.multiply(row / row.mean(), column, out=square)
        np.sqrt(update, out=update)
        np.divide(g, update, out=update)
        length = max(1.0, _rms(update) / h["threshold"])
        rate = max(h["eps2"], _rms(p)) * min(h["lr"], 1 / math.sqrt(self.t))
        if h["weight_decay_rate"]:
            p -= h["lr"] * h["weight_decay_rate"] * p
        p -= (rate / length * update).reshape(p.shape)


def _as_matrix(array):
    """Returns an array as a matrix whose second axis merges all axes except the first; a vector
    becomes a column."""
    return array.reshape(array.shape[0] if array.ndim else 1, math.prod(array.shape[1:]))


def _rms(array):
    return math.sqrt(square_sum(array) / array.size)


class Adafactor(GradientMethod):
    """Adafactor: stores only the mean squares of the rows and columns of a matrix's gradient.

    With the moving averages R and C of the means of the rows and columns of g² + eps1, in which the
    past has the weight 1 - t^-decay, V = R C / mean(R), u = g / √V and p ← p - max(eps2, rms(p))
    min(lr, 1 / √t) u / max(1, rms(u) / threshold).

    The state of an (n, m) matrix has n + m elements. In parameters with more axes, all axes but the
    first are merged; the state of a vector of n elements has n + 1.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.Adafactor(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.9])

    Args:
        lr: largest step, relative to the root mean square of the parameter.
        decay: the exponent with which the weight of the past approaches 1.
        eps1: added to squared gradients.
        eps2: lower bound of the root mean square of the parameter.
        threshold: upper bound of the root mean square of u.
        weight_decay_rate: decoupled weight decay, multiplied by ``lr``.

    See N. Shazeer and M. Stern, Adafactor: adaptive learning rates with sublinear memory cost,
    ICML 2018, algorithms 4 and 5.

    Raises (by :meth:`setup`):
        ValueError: a parameter is divided among ranks.
    """

    rule = AdafactorRule

    def setup(self, link: Link) -> Self:
        for name, param in link.namedparams():
            if param.divided_among is not None:
                raise ValueError(
                    f"Adafactor.setup: parameter {name} is divided among ranks, but the means over "
                    "rows and columns need the whole parameter: use another optimizer"
                )
        return super().setup(link)
