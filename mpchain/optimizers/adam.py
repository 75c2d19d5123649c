"""Adam and its variants."""

import math
import warnings
from typing import Any

import numpy as np

from mpchain.optimizer import GradientMethod
from mpchain.typing import Array
from mpchain.update_rule import Hyperparameter, UpdateRule


def _learning_rate(hyperparam, t, called):
    """Returns the learning rate at step t, which is alpha times the bias corrections of both
    averages."""
    if t == 0:
        raise RuntimeError(f"{called}.lr: the learning rate is undefined before the first update")
    correction1 = 1 - hyperparam.beta1**t
    correction2 = 1 - hyperparam.beta2**t
    return hyperparam.alpha * math.sqrt(correction2) / correction1


class AdamRule(UpdateRule):
    """Update rule of :class:`Adam`.

    >>> AdamRule().states
    ('m', 'v')
    """

    hyperparameters = {
        "alpha": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "eta": 1.0,
        "weight_decay_rate": 0,
        "amsgrad": False,
        "adabound": False,
        "final_lr": 0.1,
        "gamma": 1e-3,
        "decay_times_alpha": False,
    }
    states = ("m", "v")
    scalars_depend_on = ("_initial_alpha",)
    _initial_alpha = None

    def __init__(
        self, parent_hyperparam: Hyperparameter | None = None, *values: Any, **hyperparams: Any
    ) -> None:
        super().__init__(parent_hyperparam, *values, **hyperparams)
        if self.hyperparam.adabound:
            self._initial_alpha = self.hyperparam.alpha
        if self.hyperparam.amsgrad:
            self.states = ("m", "v", "vhat")

    @property
    def alpha_t(self) -> float:
        """The learning rate of the latest update, with bias correction."""
        return _learning_rate(self.hyperparam, self.t, type(self).__name__)

    @property
    def lr(self) -> float:
        """The same as :attr:`alpha_t`."""
        return self.alpha_t

    def scalars(self) -> dict[str, Any]:
        values = super().scalars()
        del values["alpha"], values["amsgrad"], values["gamma"], values["final_lr"]
        values["lr"] = self.alpha_t
        values["bounds"] = self._bounds() if values.pop("adabound") else None
        if values.pop("decay_times_alpha"):
            values["weight_decay_rate"] *= self.hyperparam.alpha
        return values

    def _bounds(self):
        h = self.hyperparam
        if self._initial_alpha is None:
            self._initial_alpha = h.alpha
        final_lr = h.final_lr * h.alpha / self._initial_alpha
        lower = final_lr * (1 - 1 / (h.gamma * self.t + 1))
        upper = final_lr * (1 + 1 / (h.gamma * self.t))
        return float(lower), float(upper)

    @staticmethod
    def step(
        p: Array,
        g: Array,
        m: Array,
        v: Array,
        vhat: Array | None = None,
        *,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        eta: float,
        weight_decay_rate: float,
        bounds: tuple[float, float] | None,
    ) -> tuple[Array, ...]:
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g * g - v)
        if vhat is not None:
            vhat = np.maximum(vhat, v)
        divisor = np.sqrt(v if vhat is None else vhat)
        divisor += eps
        if bounds is None:
            step = m / divisor
            step *= lr
        else:
            step = m * np.minimum(np.maximum(lr / divisor, bounds[0]), bounds[1])
        if weight_decay_rate:
            step += weight_decay_rate * p
        step *= eta
        p -= step
        return (p, m, v) if vhat is None else (p, m, v, vhat)


class Adam(GradientMethod):
    """Adam: p ← p - eta (lr m / (√v + eps) + weight_decay_rate p).

    m and v are moving averages of the gradient and of its square,
    m ← beta1 m + (1 - beta1) g, v ← beta2 v + (1 - beta2) g², and
    lr = alpha √(1 - beta2^t) / (1 - beta1^t) corrects their bias towards zero.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.Adam(alpha=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.9])

    Args:
        alpha: learning rate.
        beta1, beta2: decay rates of m and v.
        eps: added to the divisor.
        eta: factor of the whole step, including weight decay.
        weight_decay_rate: decoupled weight decay.
        amsgrad: whether to divide by the root of the largest v so far instead of the root of v.
        adabound: whether to clip lr / (√v + eps) to bounds that both approach ``final_lr``, faster
            for larger ``gamma``. If alpha is changed, the bounds change by the same factor.
        final_lr, gamma: the limit of the bounds of ``adabound``, and the rate at which they
            approach it.
        decay_times_alpha: whether to multiply ``weight_decay_rate`` by alpha, as PyTorch does.

    See D. Kingma and J. Ba, Adam: a method for stochastic optimization, ICLR 2015;
    I. Loshchilov and F. Hutter, Decoupled weight decay regularization, ICLR 2019;
    S. Reddi et al., On the convergence of Adam and beyond, ICLR 2018;
    L. Luo et al., Adaptive gradient methods with dynamic bound of learning rate, ICLR 2019.
    """

    rule = AdamRule

    @property
    def alpha_t(self) -> float:
        """The learning rate of the latest update, with bias correction."""
        return _learning_rate(self.hyperparam, self.t, type(self).__name__)

    @property
    def lr(self) -> float:
        """The same as :attr:`alpha_t`."""
        return self.alpha_t


class AdamW(Adam):
    """:class:`Adam` with decoupled weight decay, by the name that the paper uses.

    As in Chainer and in the paper, each step subtracts ``weight_decay_rate`` times the parameter,
    independent of alpha. PyTorch also multiplies this amount by the learning rate; to use PyTorch's
    rates, set ``decay_times_alpha=True``.

    Warns:
        UserWarning: the rate is 1e-3 or more, alpha has its default, and ``decay_times_alpha`` is
            False. The effect is then a thousand times the effect of the same rate in PyTorch.

    >>> link = L.Parameter(np.array([1.0]))
    >>> optimizer = optimizers.AdamW(alpha=0.1, weight_decay_rate=0.01).setup(link)
    >>> optimizer.update(lambda: F.sum(link() ** 2))
    >>> link.W.array.round(4)
    array([0.89])
    """

    def __init__(
        self,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        eta: float = 1.0,
        weight_decay_rate: float = 0,
        decay_times_alpha: bool = False,
    ) -> None:
        if weight_decay_rate >= 1e-3 and alpha == 0.001 and not decay_times_alpha:
            warnings.warn(
                f"AdamW: each step shrinks every parameter by {weight_decay_rate:.1%}, because, "
                "unlike in PyTorch, weight_decay_rate is not multiplied by alpha: give "
                f"decay_times_alpha=True, or weight_decay_rate={weight_decay_rate * alpha:.1g}",
                UserWarning,
                stacklevel=2,
            )
        decay = {"weight_decay_rate": weight_decay_rate, "decay_times_alpha": decay_times_alpha}
        super().__init__(alpha, beta1, beta2, eps, eta, **decay)


class AMSGrad(Adam):
    """:class:`Adam` with ``amsgrad``.

    >>> link = L.Parameter(np.array([1.0]))
    >>> optimizers.AMSGrad(alpha=0.1).setup(link).update(lambda: F.sum(link() ** 2))
    >>> link.W.array.round(4)
    array([0.9])
    """

    def __init__(
        self,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        eta: float = 1.0,
    ) -> None:
        super().__init__(alpha, beta1, beta2, eps, eta, amsgrad=True)


class AdaBound(Adam):
    """:class:`Adam` with ``adabound``.

    >>> link = L.Parameter(np.array([1.0]))
    >>> optimizers.AdaBound(alpha=0.1).setup(link).update(lambda: F.sum(link() ** 2))
    >>> link.W.array.round(4)
    array([0.9])
    """

    _amsgrad = False

    def __init__(
        self,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        final_lr: float = 0.1,
        gamma: float = 1e-3,
        eps: float = 1e-8,
        eta: float = 1.0,
    ) -> None:
        bounds = {"adabound": True, "final_lr": final_lr, "gamma": gamma}
        super().__init__(alpha, beta1, beta2, eps, eta, amsgrad=self._amsgrad, **bounds)


class AMSBound(AdaBound):
    """:class:`Adam` with ``amsgrad`` and ``adabound``.

    >>> link = L.Parameter(np.array([1.0]))
    >>> optimizers.AMSBound(alpha=0.1).setup(link).update(lambda: F.sum(link() ** 2))
    >>> link.W.array.round(4)
    array([0.9])
    """

    _amsgrad = True


class RAdamRule(UpdateRule):
    """Update rule of :class:`RAdam`.

    >>> RAdamRule().states
    ('m', 'v')
    """

    hyperparameters = {
        "alpha": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "eta": 1.0,
        "weight_decay_rate": 0,
    }
    states = ("m", "v")
    scalars_depend_on = ()

    @property
    def lr(self) -> float:
        """The factor of m, or of m / (√v + eps), in the latest update."""
        lr = _learning_rate(self.hyperparam, self.t, type(self).__name__)
        rectification = _rectification(self.hyperparam.beta2, self.t)
        if rectification is None:
            return lr / math.sqrt(1 - self.hyperparam.beta2**self.t)
        return lr * rectification

    def scalars(self) -> dict[str, Any]:
        values = super().scalars()
        del values["alpha"]
        values["lr"] = self.lr
        values["is_rectified"] = _rectification(values["beta2"], self.t) is not None
        return values

    @staticmethod
    def step(
        p: Array,
        g: Array,
        m: Array,
        v: Array,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        eta: float,
        weight_decay_rate: float,
        is_rectified: bool,
    ) -> tuple[Array, ...]:
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g * g - v)
        step = lr * m
        if is_rectified:
            step /= np.sqrt(v) + eps
        if weight_decay_rate:
            step += weight_decay_rate * p
        p -= eta * step
        return p, m, v


def _rectification(beta2, t):
    """Returns the rectification factor of the step; None as long as v averages too few
    gradients."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)
    if length <= 5:
        return None
    known = (length - 4) * (length - 2) / length
    return math.sqrt(known / ((longest - 4) * (longest - 2) / longest))


class RAdam(GradientMethod):
    """Rectified Adam, which shrinks early steps, whose size varies most, instead of a warm-up.

    The step is the step of :class:`Adam` with lr multiplied by r = √((ρ - 4)(ρ - 2) ρ∞ / ((ρ∞ -
    4)(ρ∞ - 2) ρ)), where ρ = ρ∞ - 2 t beta2^t / (1 - beta2^t) is the length of the moving average
    and ρ∞ = 2 / (1 - beta2) - 1. As long as ρ <= 5, the step is plain momentum, alpha m / (1 -
    beta1^t). (The limit is 4 in the paper, but 5 in the authors' program and in PyTorch.)

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.RAdam(alpha=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.8])

    Args:
        alpha: learning rate.
        beta1, beta2: decay rates of m and v.
        eps: added to the divisor.
        eta: factor of the whole step, including weight decay.
        weight_decay_rate: decoupled weight decay.

    See L. Liu et al., On the variance of the adaptive learning rate and beyond, ICLR 2020.
    """

    rule = RAdamRule

    @property
    def lr(self) -> float:
        """The factor of m, or of m / (√v + eps), in the latest update."""
        rule = RAdamRule(self.hyperparam)
        rule.t = self.t
        return rule.lr
