"""Optimizer hooks, which change gradients before parameters are updated.

A gradient may share its memory with other arrays, so hooks replace gradients and never write into
them.

If a hook's class sets the attribute ``works_on_parts`` to True, the hook must compute the same
values when each rank calls it with a flat slice of each parameter: the hook treats elements
independently, or sums over ranks as :func:`mpchain.update_rule.square_sums` does. A sharded
optimizer then need not give whole gradients to all ranks. A derived class does not inherit this
promise and must set the attribute itself.
"""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from mpchain.backends.cuda import get_array_module, is_gpu_array
from mpchain.configuration import config
from mpchain.optimizer import Optimizer
from mpchain.typing import Array
from mpchain.update_rule import UpdateRule, square_norm, square_sums
from mpchain.variable import Parameter


class _ParameterHook:
    """A hook that is called for each parameter; ``new_grad`` computes the new gradient.

    Attributes:
        name: the name under which an optimizer registers the hook.
        call_for_each_param: whether the hook is called for each parameter, with the update rule and
            the parameter.
        timing: ``'pre'``, because the hook is called before the update.
        changes_gradients_only: whether the hook changes only gradients, so that a call in a skipped
            step has no effect.
    """

    name: str
    call_for_each_param = True
    changes_gradients_only = True
    timing = "pre"

    def __call__(self, rule: UpdateRule, param: Parameter) -> None:
        if param.grad is not None:
            with param.device.create_context():
                grad = self.new_grad(param.xp, param.array, param.grad, rule, param)
                param.grad = grad.astype(param.dtype, copy=False)

    def new_grad(self, xp: Any, p: Array, g: Array, rule: UpdateRule, param: Parameter) -> Array:
        raise NotImplementedError(f"{type(self).__name__} does not implement new_grad")


class WeightDecay(_ParameterHook):
    """Weight decay, or L2 regularization: g ← g + rate p.

    Args:
        rate: the coefficient of the penalty.

    Example:
        >>> model = L.Linear(1, 1, initialW=2.0, nobias=True)
        >>> optimizer = optimizers.SGD(lr=1).setup(model)
        >>> optimizer.add_hook(mpchain.optimizer_hooks.WeightDecay(0.1))
        >>> optimizer.update(lambda: F.sum(model.W * 0))
        >>> model.W.array
        array([[1.8]], dtype=float32)
    """

    name = "WeightDecay"
    works_on_parts = True

    def __init__(self, rate: float):
        self.rate = rate

    def new_grad(
        self, xp: ModuleType, p: Array, g: Array, rule: UpdateRule, param: Parameter
    ) -> Array:
        decay = self.rate * p
        decay += g
        return decay


class Lasso(_ParameterHook):
    """L1 regularization: g ← g + rate sign(p).

    Args:
        rate: the coefficient of the penalty.

    Example:
        >>> param = mpchain.Parameter(np.array([2.0, -3.0]))
        >>> param.grad = np.zeros(2)
        >>> mpchain.optimizer_hooks.Lasso(0.1)(None, param)
        >>> param.grad
        array([ 0.1, -0.1])
    """

    name = "Lasso"
    works_on_parts = True

    def __init__(self, rate: float):
        self.rate = rate

    def new_grad(
        self, xp: ModuleType, p: Array, g: Array, rule: UpdateRule, param: Parameter
    ) -> Array:
        return g + self.rate * xp.sign(p)


class GradientHardClipping(_ParameterHook):
    """Clips each element of the gradients to an interval.

    Args:
        lower_bound, upper_bound: the bounds of the interval.

    Raises:
        ValueError: ``lower_bound`` exceeds ``upper_bound``.

    Example:
        >>> param = mpchain.Parameter(np.zeros(3))
        >>> param.grad = np.array([-5.0, 0.5, 5.0])
        >>> mpchain.optimizer_hooks.GradientHardClipping(-1, 1)(None, param)
        >>> param.grad
        array([-1. ,  0.5,  1. ])
    """

    name = "GradientHardClipping"
    works_on_parts = True

    def __init__(self, lower_bound: float, upper_bound: float):
        if not lower_bound <= upper_bound:
            raise ValueError(
                "GradientHardClipping: lower_bound must not exceed upper_bound, "
                f"but {lower_bound} > {upper_bound}"
            )
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound

    def new_grad(
        self, xp: ModuleType, p: Array, g: Array, rule: UpdateRule, param: Parameter
    ) -> Array:
        return xp.clip(g, self.lower_bound, self.upper_bound)


def exponential_decay_noise(
    xp: ModuleType, shape: tuple[int, ...], dtype: np.dtype, hook: "GradientNoise", opt: UpdateRule
) -> Array:
    """Returns normal noise of variance eta / (1 + t)^0.55, where t is the number of updates so far.

    Example:
        >>> hook, rule = mpchain.optimizer_hooks.GradientNoise(eta=0.3), optimizers.SGDRule()
        >>> noise = mpchain.optimizer_hooks.exponential_decay_noise
        >>> noise(np, (2, 3), np.float32, hook, rule).shape
        (2, 3)
    """
    deviation = math.sqrt(hook.eta / (1 + opt.t) ** 0.55)
    return xp.asarray((config.rng or np.random).normal(0.0, deviation, shape), dtype)


class GradientNoise(_ParameterHook):
    """Adds random noise to the gradients.

    All ranks must draw the same noise; a multi-node optimizer ensures that they do.

    Args:
        eta: scale of the noise.
        noise_func: function that returns the noise. Its arguments are the array module, the shape,
            the dtype, this hook and the update rule.

    See A. Neelakantan et al., Adding gradient noise improves learning for very deep networks, 2015.

    Example:
        >>> param = mpchain.Parameter(np.zeros(2))
        >>> param.grad = np.ones(2)
        >>> mpchain.optimizer_hooks.GradientNoise(eta=0)(optimizers.SGDRule(), param)
        >>> param.grad
        array([1., 1.])
    """

    name = "GradientNoise"

    def __init__(self, eta: float, noise_func: Callable[..., Array] = exponential_decay_noise):
        self.eta = eta
        self.noise_func = noise_func

    def new_grad(
        self, xp: ModuleType, p: Array, g: Array, rule: UpdateRule, param: Parameter
    ) -> Array:
        return g + self.noise_func(xp, g.shape, g.dtype, self, rule)


class GradientLARS(_ParameterHook):
    """Layer-wise adaptive rate scaling: scales each gradient to the norm of its parameter.

    g ← ‖p‖ / (eps + ‖g‖ + weight_decay ‖p‖) (g + weight_decay p), without the first factor for
    parameters whose norm does not exceed the threshold.

    Args:
        threshold: the norm up to which parameters are too small to scale gradients.
        weight_decay: coefficient of weight decay.
        eps: a positive number that keeps the divisor from being zero.

    See Y. You et al., Large batch training of convolutional networks, 2017.

    Example:
        >>> param = mpchain.Parameter(np.array([3.0, 4.0]))
        >>> param.grad = np.array([0.0, 100.0])
        >>> mpchain.optimizer_hooks.GradientLARS()(None, param)
        >>> param.grad.round(6)
        array([0., 5.])
    """

    name = "GradientLARS"

    def __init__(self, threshold: float = 0.01, weight_decay: float = 0.0, eps: float = 1e-9):
        self.threshold = threshold
        self.weight_decay = weight_decay
        self.eps = eps

    def new_grad(
        self, xp: ModuleType, p: Array, g: Array, rule: UpdateRule, param: Parameter
    ) -> Array:
        p_norm, g_norm = map(math.sqrt, square_sums([param] * 2, [p, g]).tolist())
        rate = 1.0
        if p_norm > self.threshold:
            rate = p_norm / (self.eps + g_norm + self.weight_decay * p_norm)
        return rate * (g + self.weight_decay * p)


class GradientClipping:
    """Scales all gradients by the same factor, so that their joint norm does not exceed a
    threshold.

    The norm is the L2 norm of the gradients of all parameters taken as one vector. It includes all
    parts of parameters that are divided among ranks.

    Args:
        threshold: the largest norm.

    Raises:
        ValueError: the threshold is not positive.

    Example:
        >>> model = L.Linear(2, 1, initialW=0, nobias=True)
        >>> optimizer = optimizers.SGD(lr=1).setup(model)
        >>> optimizer.add_hook(mpchain.optimizer_hooks.GradientClipping(1))
        >>> optimizer.update(lambda: F.sum(model(np.array([[3, 4]], np.float32))))
        >>> model.W.array
        array([[-0.6, -0.8]], dtype=float32)
    """

    name = "GradientClipping"
    works_on_parts = True
    call_for_each_param = False
    changes_gradients_only = True
    timing = "pre"

    def __init__(self, threshold: float):
        if not threshold > 0:
            raise ValueError(f"GradientClipping: threshold must be positive, not {threshold}")
        self.threshold = threshold

    def __call__(self, opt: Optimizer) -> None:
        params = [param for _, param in opt.rules_and_params() if param.grad is not None]
        square = square_norm(params, [param.grad for param in params])
        if is_gpu_array(square):  # On a GPU, the rate is computed without a wait of the host.
            with square.device:
                xp, norm = get_array_module(square), square**0.5
                factor = xp.where(norm > self.threshold, self.threshold / norm, 1.0)
                factors = {dtype: factor.astype(dtype) for dtype in {p.dtype for p in params}}
                for param in params:
                    param.grad = param.grad * factors[param.dtype]
            return
        norm = math.sqrt(square)
        if norm > self.threshold:
            for param in params:
                param.grad = param.grad * (self.threshold / norm)
