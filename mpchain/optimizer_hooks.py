"""Optimizer hooks: what is done to gradients before parameters follow them.

A gradient may share its memory with others, so hooks replace gradients and never write into them.
"""

import math

import numpy as np

from mpchain.configuration import config
from mpchain.update_rule import square_sums


class _ParameterHook:
    """A hook that is called for each parameter; ``new_grad`` computes what replaces its gradient.

    Attributes:
        name (str): under which optimizers know it.
        call_for_each_param (bool): whether it is called with update rule and parameter.
        timing (str): when it is called.
    """

    name = None
    call_for_each_param = True
    timing = "pre"

    def __call__(self, rule, param):
        if param.grad is not None:
            with param.device.create_context():
                grad = self.new_grad(param.xp, param.array, param.grad, rule, param)
                param.grad = grad.astype(param.dtype, copy=False)


class WeightDecay(_ParameterHook):
    """Weight decay, or L2 regularization: g ← g + rate p.

    Args:
        rate (float): the coefficient.
    """

    name = "WeightDecay"

    def __init__(self, rate):
        self.rate = rate

    def new_grad(self, xp, p, g, rule, param):
        decay = self.rate * p
        decay += g
        return decay


class Lasso(_ParameterHook):
    """L1 regularization: g ← g + rate sign(p).

    Args:
        rate (float): the coefficient.
    """

    name = "Lasso"

    def __init__(self, rate):
        self.rate = rate

    def new_grad(self, xp, p, g, rule, param):
        return g + self.rate * xp.sign(p)


class GradientHardClipping(_ParameterHook):
    """Clips each element of the gradients to an interval.

    Args:
        lower_bound, upper_bound (float): the interval.

    Raises:
        ValueError: it is empty.
    """

    name = "GradientHardClipping"

    def __init__(self, lower_bound, upper_bound):
        if not lower_bound <= upper_bound:
            raise ValueError(
                "GradientHardClipping: lower_bound must not exceed upper_bound, "
                f"but {lower_bound} > {upper_bound}"
            )
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound

    def new_grad(self, xp, p, g, rule, param):
        return xp.clip(g, self.lower_bound, self.upper_bound)


def exponential_decay_noise(xp, shape, dtype, hook, opt):
    """Returns normal noise of variance eta / (1 + t)^0.55, t being the number of updates so far."""
    deviation = math.sqrt(hook.eta / (1 + opt.t) ** 0.55)
    return xp.asarray((config.rng or np.random).normal(0.0, deviation, shape), dtype)


class GradientNoise(_ParameterHook):
    """Adds random noise to the gradients.

    With several ranks all must draw the same numbers: a multi-node optimizer sees to that.

    Args:
        eta (float): scale of the noise.
        noise_func: function of array module, shape, dtype, this hook and the update rule that
            returns the noise.

    See A. Neelakantan et al., Adding gradient noise improves learning for very deep networks, 2015.
    """

    name = "GradientNoise"

    def __init__(self, eta, noise_func=exponential_decay_noise):
        self.eta = eta
        self.noise_func = noise_func

    def new_grad(self, xp, p, g, rule, param):
        return g + self.noise_func(xp, g.shape, g.dtype, self, rule)


class GradientLARS(_ParameterHook):
    """Layer-wise adaptive rate scaling: the gradient gets the norm of the parameter.

    g ← ‖p‖ / (eps + ‖g‖ + weight_decay ‖p‖) (g + weight_decay p), without the first factor for
    parameters whose norm is not above the threshold.

    Args:
        threshold (float): the norm of parameters that are too small to follow.
        weight_decay (float): coefficient of weight decay.
        eps (float): keeps the divisor from zero.

    See Y. You et al., Large batch training of convolutional networks, 2017.
    """

    name = "GradientLARS"

    def __init__(self, threshold=0.01, weight_decay=0.0, eps=1e-9):
        self.threshold = threshold
        self.weight_decay = weight_decay
        self.eps = eps

    def new_grad(self, xp, p, g, rule, param):
        p_norm, g_norm = map(math.sqrt, square_sums([param] * 2, [p, g]))
        rate = 1.0
        if p_norm > self.threshold:
            rate = p_norm / (self.eps + g_norm + self.weight_decay * p_norm)
        return rate * (g + self.weight_decay * p)


class GradientClipping:
    """Scales all gradients by one factor, so that their norm does not exceed a threshold.

    The norm is the L2 norm of the gradients of all parameters taken as one vector, with all parts
    of those that are divided among ranks.

    Args:
        threshold (float): the largest norm.

    Raises:
        ValueError: it is not positive.
    """

    name = "GradientClipping"
    call_for_each_param = False
    timing = "pre"

    def __init__(self, threshold):
        if not threshold > 0:
            raise ValueError(f"GradientClipping: threshold must be positive, not {threshold}")
        self.threshold = threshold

    def __call__(self, opt):
        params = [param for _, param in opt.rules_and_params() if param.grad is not None]
        norm = math.sqrt(math.fsum(square_sums(params, [param.grad for param in params])))
        if norm > self.threshold:
            for param in params:
                param.grad = param.grad * (self.threshold / norm)
