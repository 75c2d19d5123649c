"""Gradient descent, plain and with momentum."""

import math

import numpy as np

from mpchain.optimizer import GradientMethod
from mpchain.typing import Array
from mpchain.update_rule import UpdateRule, leaves_zero_gradients


class SGDRule(UpdateRule):
    """Update rule of :class:`SGD`.

    >>> SGDRule().states
    ()
    """

    hyperparameters = {"lr": 0.01}

    @staticmethod
    @leaves_zero_gradients(lambda lr: 0 <= lr < math.inf)
    def step(p: Array, g: Array, lr: float) -> tuple[Array, ...]:
        p -= lr * g
        return (p,)


class SGD(GradientMethod):
    """Stochastic gradient descent: p ← p - lr g.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.SGD(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.8])

    Args:
        lr: learning rate.
    """

    rule = SGDRule


class MomentumSGDRule(UpdateRule):
    """Update rule of :class:`MomentumSGD`.

    >>> MomentumSGDRule().states
    ('v',)
    """

    hyperparameters = {"lr": 0.01, "momentum": 0.9}
    states = ("v",)

    @staticmethod
    def step(p: Array, g: Array, v: Array, lr: float, momentum: float) -> tuple[Array, ...]:
        v *= momentum
        v -= lr * g
        p += v
        return p, v


class MomentumSGD(GradientMethod):
    """Gradient descent with momentum: v ← momentum v - lr g, p ← p + v.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.MomentumSGD(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.8])

    Args:
        lr: learning rate.
        momentum: decay rate of the velocity v.
    """

    rule = MomentumSGDRule


class CorrectedMomentumSGDRule(UpdateRule):
    """Update rule of :class:`CorrectedMomentumSGD`.

    >>> CorrectedMomentumSGDRule().states
    ('v',)
    """

    hyperparameters = {"lr": 0.01, "momentum": 0.9}
    states = ("v",)

    @staticmethod
    def step(p: Array, g: Array, v: Array, lr: float, momentum: float) -> tuple[Array, ...]:
        v *= momentum
        v -= g
        p += lr * v
        return p, v


class CorrectedMomentumSGD(GradientMethod):
    """Momentum for changing learning rates: v ← momentum v - g, p ← p + lr v.

    Unlike in :class:`MomentumSGD`, a new learning rate also applies to the accumulated v.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.CorrectedMomentumSGD(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.8])

    Args:
        lr: learning rate.
        momentum: decay rate of the velocity v.

    See P. Goyal et al., Accurate, large minibatch SGD, 2017.
    """

    rule = CorrectedMomentumSGDRule


class NesterovAGRule(UpdateRule):
    """Update rule of :class:`NesterovAG`.

    >>> NesterovAGRule().states
    ('v',)
    """

    hyperparameters = {"lr": 0.01, "momentum": 0.9}
    states = ("v",)

    @staticmethod
    def step(p: Array, g: Array, v: Array, lr: float, momentum: float) -> tuple[Array, ...]:
        descent = lr * g
        v *= momentum
        v -= descent
        p += momentum * momentum * v
        p -= (1 + momentum) * descent
        return p, v


class NesterovAG(GradientMethod):
    """Nesterov's accelerated gradient.

    v ← momentum v - lr g, p ← p + momentum² v - (1 + momentum) lr g. As in Chainer, the second
    formula uses the updated v; the paper uses v before its update.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.NesterovAG(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.458])

    Args:
        lr: learning rate.
        momentum: decay rate of the velocity v.

    See Y. Bengio et al., Advances in optimizing recurrent networks, ICASSP 2013.
    """

    rule = NesterovAGRule


class SGDWRule(UpdateRule):
    """Update rule of :class:`SGDW`.

    >>> SGDWRule().states
    ('v',)
    """

    hyperparameters = {"lr": 0.01, "momentum": 0.9, "eta": 1.0, "weight_decay_rate": 0}
    states = ("v",)

    @staticmethod
    def step(
        p: Array,
        g: Array,
        v: Array,
        lr: float,
        momentum: float,
        eta: float,
        weight_decay_rate: float,
    ) -> tuple[Array, ...]:
        v *= momentum
        v -= eta * lr * g
        if weight_decay_rate:
            p -= eta * weight_decay_rate * p
        p += v
        return p, v


class SGDW(GradientMethod):
    """Momentum with decoupled weight decay: v ← momentum v - eta lr g, p ← p + v - eta rate p.

    The decay does not enter the velocity and does not depend on ``lr``; schedule ``eta`` to change
    the learning rate and the decay together.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizer = optimizers.SGDW(lr=0.1, weight_decay_rate=0.01).setup(link)
        >>> optimizer.update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.79])

    Args:
        lr: learning rate.
        momentum: decay rate of the velocity v; 0 means plain gradient descent.
        eta: factor of ``lr`` and of the weight decay.
        weight_decay_rate: decoupled weight decay.

    See I. Loshchilov and F. Hutter, Decoupled weight decay regularization, ICLR 2019, algorithm 1.
    """

    rule = SGDWRule


class LionRule(UpdateRule):
    """Update rule of :class:`Lion`.

    >>> LionRule().states
    ('m',)
    """

    hyperparameters = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.99, "weight_decay_rate": 0}
    states = ("m",)

    @staticmethod
    def step(
        p: Array,
        g: Array,
        m: Array,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay_rate: float,
    ) -> tuple[Array, ...]:
        direction = np.sign(beta1 * m + (1 - beta1) * g)
        if weight_decay_rate:
            direction += weight_decay_rate * p
        p -= lr * direction
        m += (1 - beta2) * (g - m)
        return p, m


class Lion(GradientMethod):
    """Lion: takes steps along the sign of a momentum, so that, without weight decay, all elements
    change by the same amount.

    p ← p - lr (sign(beta1 m + (1 - beta1) g) + weight_decay_rate p), and then
    m ← beta2 m + (1 - beta2) g. Compared with Adam, Lion needs half of the state, a learning rate
    that is 3 to 10 times smaller, and a weight decay that is larger by the same factor.

        >>> link = L.Parameter(np.array([1.0]))
        >>> optimizers.Lion(lr=0.1).setup(link).update(lambda: F.sum(link() ** 2))
        >>> link.W.array.round(4)
        array([0.9])

    Args:
        lr: learning rate.
        beta1: weight of m in the direction.
        beta2: decay rate of m.
        weight_decay_rate: decoupled weight decay, multiplied by ``lr``.

    See X. Chen et al., Symbolic discovery of optimization algorithms, NeurIPS 2023.
    """

    rule = LionRule
