"""Optimizers whose step sizes adapt to the past gradients of each element."""

import math
from typing import Any

import numpy as np

from mpchain.optimizer import GradientMethod
from mpchain.typing import Array
from mpchain.update_rule import UpdateRule, leaves_zero_gradients
from mpchain.variable import Parameter


class AdaGradRule(UpdateRule):
    """Update rule of :class:`AdaGrad`.

    >>> AdaGradRule().states
    ('h',)
    """

    hyperparameters = {"lr": 0.001, "eps": 1e-8}
    states = ("h",)

    @staticmethod
    @leaves_zero_gradients(lambda lr, eps: 0 <= lr < math.inf and eps > 0)
    def step(p: Array, g: Array, h: Array, lr: float, eps: float) -> tuple[Array, ...]:
        h += g * g
        p -= lr * g / (np.sqrt(h) + eps)
        return p, h


class AdaGrad(GradientMethod):
    """AdaGrad: h ← h + g², p ← p - lr g / (√h + eps).

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.AdaGrad(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.9])

    Args:
        lr: learning rate.
        eps: added to the divisor.

    See J. Duchi et al., Adaptive subgradient methods, JMLR 2011.
    """

    rule = AdaGradRule


class AdaDeltaRule(UpdateRule):
    """Update rule of :class:`AdaDelta`.

    >>> AdaDeltaRule().states
    ('msg', 'msdx')
    """

    hyperparameters = {"rho": 0.95, "eps": 1e-6}
    states = ("msg", "msdx")

    @staticmethod
    def step(
        p: Array, g: Array, msg: Array, msdx: Array, rho: float, eps: float
    ) -> tuple[Array, ...]:
        msg *= rho
        msg += (1 - rho) * g * g
        dx = np.sqrt((msdx + eps) / (msg + eps)) * g
        msdx *= rho
        msdx += (1 - rho) * dx * dx
        p -= dx
        return p, msg, msdx


class AdaDelta(GradientMethod):
    """AdaDelta: scales steps by the root mean square of past steps, and has no learning rate.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.AdaDelta().setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.9955])

    Args:
        rho: decay rate of the mean squares.
        eps: added to both mean squares.

    See M. Zeiler, ADADELTA: an adaptive learning rate method, 2012.
    """

    rule = AdaDeltaRule


class RMSpropRule(UpdateRule):
    """Update rule of :class:`RMSprop`.

    >>> RMSpropRule().states
    ('ms',)
    """

    hyperparameters = {"lr": 0.01, "alpha": 0.99, "eps": 1e-8, "eps_inside_sqrt": False}
    states = ("ms",)

    @staticmethod
    def step(
        p: Array, g: Array, ms: Array, lr: float, alpha: float, eps: float, eps_inside_sqrt: bool
    ) -> tuple[Array, ...]:
        ms *= alpha
        ms += (1 - alpha) * g * g
        p -= lr * g / (np.sqrt(ms + eps) if eps_inside_sqrt else np.sqrt(ms) + eps)
        return p, ms


class RMSprop(GradientMethod):
    """RMSprop: ms ← alpha ms + (1 - alpha) g², p ← p - lr g / (√ms + eps).

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.RMSprop(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.])

    Args:
        lr: learning rate.
        alpha: decay rate of the mean square.
        eps: added to the divisor.
        eps_inside_sqrt: whether the divisor is √(ms + eps).

    See T. Tieleman and G. Hinton, Lecture 6.5 (RMSprop), COURSERA 2012.
    """

    rule = RMSpropRule


class RMSpropGravesRule(UpdateRule):
    """Update rule of :class:`RMSpropGraves`.

    >>> RMSpropGravesRule().states
    ('n', 'g', 'delta')
    """

    hyperparameters = {"lr": 1e-4, "alpha": 0.95, "momentum": 0.9, "eps": 1e-4}
    states = ("n", "g", "delta")

    @staticmethod
    def step(
        p: Array,
        grad: Array,
        n: Array,
        g: Array,
        delta: Array,
        lr: float,
        alpha: float,
        momentum: float,
        eps: float,
    ) -> tuple[Array, ...]:
        n *= alpha
        n += (1 - alpha) * grad * grad
        g *= alpha
        g += (1 - alpha) * grad
        delta *= momentum
        delta -= lr * grad / np.sqrt(n - g * g + eps)
        p += delta
        return p, n, g, delta


class RMSpropGraves(GradientMethod):
    """RMSprop with momentum, which divides by the standard deviation of the gradient.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.RMSpropGraves(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.5413])

    Args:
        lr: learning rate.
        alpha: decay rate of the mean and mean square of the gradient.
        momentum: decay rate of the step.
        eps: added to the variance.

    See A. Graves, Generating sequences with recurrent neural networks, 2013.
    """

    rule = RMSpropGravesRule


class SMORMS3Rule(UpdateRule):
    """Update rule of :class:`SMORMS3`.

    >>> SMORMS3Rule().states
    ('mem', 'g', 'g2')
    """

    hyperparameters = {"lr": 0.001, "eps": 1e-16}
    states = ("mem", "g", "g2")

    def init_state(self, param: Parameter) -> None:
        super().init_state(param)
        self.state["mem"] += 1

    @staticmethod
    def step(
        p: Array, grad: Array, mem: Array, g: Array, g2: Array, lr: float, eps: float
    ) -> tuple[Array, ...]:
        r = 1 / (mem + 1)
        g += r * (grad - g)
        g2 += r * (grad * grad - g2)
        x = g * g / (g2 + eps)
        p -= grad * np.minimum(lr, x) / (np.sqrt(g2) + eps)
        mem *= 1 - x
        mem += 1
        return p, mem, g, g2


class SMORMS3(GradientMethod):
    """SMORMS3: bounds the learning rate by the squared mean of the gradient divided by its mean
    square.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.SMORMS3(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.8586])

    Args:
        lr: largest learning rate.
        eps: added to divisors.

    See S. Funk, RMSprop loses to SMORMS3, 2015.
    """

    rule = SMORMS3Rule


class MSVAGRule(UpdateRule):
    """Update rule of :class:`MSVAG`.

    >>> MSVAGRule().states
    ('m', 'v')
    """

    hyperparameters = {"lr": 0.1, "beta": 0.9, "eta": 1.0, "weight_decay_rate": 0}
    states = ("m", "v")
    scalars_depend_on = ()

    def scalars(self) -> dict[str, Any]:
        values = super().scalars()
        beta = values["beta"]
        values["correction"] = 1 - beta**self.t
        # rho is the variance of m divided by the variance of one gradient. rho is bounded because
        # it starts at 1, where the estimated variance of the gradient would be 0 / 0.
        rho = (1 - beta) * (1 + beta**self.t) / ((1 + beta) * values["correction"])
        values["rho"] = min(rho, 0.9999)
        return values

    @staticmethod
    def step(
        p: Array,
        g: Array,
        m: Array,
        v: Array,
        lr: float,
        beta: float,
        eta: float,
        weight_decay_rate: float,
        correction: float,
        rho: float,
    ) -> tuple[Array, ...]:
        m += (1 - beta) * (g - m)
        v += (1 - beta) * (g * g - v)
        mean = m / correction
        square = mean * mean
        variance = np.maximum((v / correction - square) / (1 - rho), 0)
        damping = square / np.maximum(square + rho * variance, 1e-30)
        step = lr * damping * mean
        if weight_decay_rate:
            step += weight_decay_rate * p
        p -= eta * step
        return p, m, v


class MSVAG(GradientMethod):
    """M-SVAG: momentum whose steps are damped where the variance of the gradient is high.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.MSVAG(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.8])

    Args:
        lr: learning rate.
        beta: decay rate of the mean and mean square of the gradient.
        eta: factor of the whole step, including weight decay.
        weight_decay_rate: decoupled weight decay.

    See L. Balles and P. Hennig, Dissecting Adam: the sign, magnitude and variance of stochastic
    gradients, ICML 2018.
    """

    rule = MSVAGRule
