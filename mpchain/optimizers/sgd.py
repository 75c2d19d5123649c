"""Gradient descent, plain and with momentum."""

from mpchain.optimizer import GradientMethod
from mpchain.update_rule import UpdateRule


class SGDRule(UpdateRule):
    """Update rule of :class:`SGD`."""

    hyperparameters = {"lr": 0.01}

    @staticmethod
    def step(p, g, lr):
        p -= lr * g
        return (p,)


class SGD(GradientMethod):
    """Stochastic gradient descent: p ← p - lr g.

    Args:
        lr (float): learning rate.
    """

    rule = SGDRule


class MomentumSGDRule(UpdateRule):
    """Update rule of :class:`MomentumSGD`."""

    hyperparameters = {"lr": 0.01, "momentum": 0.9}
    states = ("v",)

    @staticmethod
    def step(p, g, v, lr, momentum):
        v *= momentum
        v -= lr * g
        p += v
        return p, v


class MomentumSGD(GradientMethod):
    """Gradient descent with momentum: v ← momentum v - lr g, p ← p + v.

    Args:
        lr (float): learning rate.
        momentum (float): how much of the velocity v stays.
    """

    rule = MomentumSGDRule


class CorrectedMomentumSGDRule(UpdateRule):
    """Update rule of :class:`CorrectedMomentumSGD`."""

    hyperparameters = {"lr": 0.01, "momentum": 0.9}
    states = ("v",)

    @staticmethod
    def step(p, g, v, lr, momentum):
        v *= momentum
        v -= g
        p += lr * v
        return p, v


class CorrectedMomentumSGD(GradientMethod):
    """Momentum for changing learning rates: v ← momentum v - g, p ← p + lr v.

    Unlike :class:`MomentumSGD`, a new learning rate acts on what v has gathered, too.

    Args:
        lr (float): learning rate.
        momentum (float): how much of the velocity v stays.

    See P. Goyal et al., Accurate, large minibatch SGD, 2017.
    """

    rule = CorrectedMomentumSGDRule


class NesterovAGRule(UpdateRule):
    """Update rule of :class:`NesterovAG`."""

    hyperparameters = {"lr": 0.01, "momentum": 0.9}
    states = ("v",)

    @staticmethod
    def step(p, g, v, lr, momentum):
        descent = lr * g
        v *= momentum
        v -= descent
        p += momentum * momentum * v
        p -= (1 + momentum) * descent
        return p, v


class NesterovAG(GradientMethod):
    """Nesterov's accelerated gradient.

    v ← momentum v - lr g, p ← p + momentum² v - (1 + momentum) lr g, as in Chainer, with v after
    its update; the paper has it before.

    Args:
        lr (float): learning rate.
        momentum (float): how much of the velocity v stays.

    See Y. Bengio et al., Advances in optimizing recurrent networks, ICASSP 2013.
    """

    rule = NesterovAGRule
