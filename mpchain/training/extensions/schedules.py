"""Schedules: extensions that set a hyperparameter, such as the learning rate, over time.

Each schedule is one formula, :meth:`Schedule.value`, which a loop without a trainer can use, too::

    schedule = CosineShift("lr", 1000, init=0.1)
    for t in range(1000):
        optimizer.lr = schedule.value(t)
        optimizer.update(loss, x)
"""

import bisect
import math
from collections.abc import Sequence
from typing import Any

from mpchain.optimizer import Optimizer
from mpchain.serializer import AbstractSerializer, Deserializer
from mpchain.training.extension import Extension
from mpchain.training.trainer import Trainer


class Schedule(Extension):
    """Base of schedules: at its t-th call, sets an attribute of an optimizer to ``value(t)``.

    ``value(0)`` is set before training starts. A resumed schedule continues at the saved number of
    calls.

    A subclass defines :meth:`formula`.

    Args:
        attr: name of the attribute, such as ``'lr'``.
        init: the initial value; None means the attribute's value when training starts.
        target: the limit of the value; None means no limit.
        optimizer: the optimizer; None means the updater's ``'main'`` optimizer.

    Example:
        >>> class Halving(Schedule):
        ...     def formula(self, t, init):
        ...         return init * 0.5**t
        >>> Halving("lr", init=8.0, target=1.0).value(5)
        1.0
    """

    def __init__(
        self,
        attr: str,
        init: float | None = None,
        target: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        self._attr, self._target, self._optimizer = attr, target, optimizer
        self._init: Any = init
        self._t = 0

    def formula(self, t: int, init: float) -> float:
        """Returns the value after ``t`` calls, before the limit; ``init`` is the initial value."""
        raise NotImplementedError(f"{type(self).__name__} does not implement formula")

    def value(self, t: int) -> float:
        """Returns the value at the time ``t``.

        Args:
            t: number of calls; with the default trigger, this is the number of iterations.

        Raises:
            ValueError: the initial value was not given, and training has not started.
        """
        if self._init is None:
            raise ValueError(
                f"{type(self).__name__}.value: init must be passed, because the value of "
                f"{self._attr!r} is unknown before training starts"
            )
        value = self.formula(t, self._init)
        if self._target is not None:
            lower, upper = sorted((self._init, self._target))
            value = min(max(value, lower), upper)
        return value

    def initialize(self, trainer: Trainer) -> None:
        optimizer = self._optimizer or trainer.updater.get_optimizer("main")
        if not hasattr(optimizer, self._attr):
            raise ValueError(
                f"{type(self).__name__}: attr must name an attribute of the optimizer, "
                f"but {type(optimizer).__name__} has no {self._attr!r}"
            )
        self._optimizer = optimizer
        if self._init is None:
            self._init = getattr(optimizer, self._attr)
        self._set()

    def _set(self):
        setattr(self._optimizer, self._attr, self.value(self._t))

    def __call__(self, trainer: Trainer) -> None:
        if self._optimizer is None or self._init is None:
            self.initialize(trainer)
        self._t += 1
        self._set()

    def serialize(self, serializer: AbstractSerializer) -> None:
        self._t = serializer("_t", self._t)
        if isinstance(serializer, Deserializer):
            if self._optimizer is not None and self._init is not None:
                self._set()  # a snapshot was loaded after the start
        elif self._init is not None:
            self._save_more(serializer)  # Chainer's loader needs the last value

    def _save_more(self, serializer):
        serializer("_last_value", self.value(self._t))

    def _check(self, is_right, argument, rule, value):
        if not is_right:
            raise ValueError(f"{type(self).__name__}: {argument} must {rule}, not {value}")


class ExponentialShift(Schedule):
    """Multiplies an attribute by a rate at each call: init rate^t.

    Args:
        attr: name of the attribute.
        rate: the factor.
        init, target, optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``rate`` is negative.

    Example:
        >>> [round(ExponentialShift("lr", 0.5, init=0.4).value(t), 2) for t in (0, 1, 2)]
        [0.4, 0.2, 0.1]
    """

    def __init__(
        self,
        attr: str,
        rate: float,
        init: float | None = None,
        target: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, target, optimizer)
        self._check(rate >= 0, "rate", "not be negative", rate)
        self._rate = rate

    def formula(self, t: int, init: float) -> float:
        return init * self._rate**t


class InverseShift(Schedule):
    """Sets an attribute to init (1 + gamma t)^-power.

    Args:
        attr: name of the attribute.
        gamma: the factor of ``t``, at least 0.
        power: the power of 1 / (1 + gamma t).
        init, target, optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``gamma`` is negative.

    Example:
        >>> [round(InverseShift("lr", 0.5, 1, init=0.6).value(t), 2) for t in (0, 1, 2)]
        [0.6, 0.4, 0.3]
    """

    def __init__(
        self,
        attr: str,
        gamma: float,
        power: float,
        init: float | None = None,
        target: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, target, optimizer)
        self._check(gamma >= 0, "gamma", "not be negative", gamma)
        self._gamma, self._power = gamma, power

    def formula(self, t: int, init: float) -> float:
        return init * (1 + self._gamma * t) ** -self._power


class LinearShift(Schedule):
    """Changes an attribute linearly from one value to another, and then keeps it.

    Args:
        attr: name of the attribute.
        value_range: the first and the last value.
        time_range: pair of the numbers of calls after which the change begins and ends.
        optimizer: see :class:`Schedule`.

    Raises:
        ValueError: the times are not ascending.

    Example:
        >>> [LinearShift("lr", (1.0, 0.0), (10, 20)).value(t) for t in (0, 15, 99)]
        [1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        attr: str,
        value_range: Sequence[float],
        time_range: Sequence[int],
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, value_range[0], optimizer=optimizer)
        self._check(time_range[0] < time_range[1], "time_range", "be ascending", time_range)
        self._end, self._time_range = value_range[1], time_range

    def formula(self, t: int, init: float) -> float:
        begin, end = self._time_range
        fraction = min(max((t - begin) / (end - begin), 0), 1)
        return (1 - fraction) * init + fraction * self._end


class MultistepShift(Schedule):
    """Multiplies an attribute by gamma at each of several times.

    Args:
        attr: name of the attribute.
        gamma: the factor.
        step_value: the numbers of calls at which the attribute is multiplied, ascending.
        init, optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``step_value`` is not ascending.

    Example:
        >>> [round(MultistepShift("lr", 0.1, [10, 20], 1.0).value(t), 3) for t in (0, 10, 20)]
        [1.0, 0.1, 0.01]
    """

    def __init__(
        self,
        attr: str,
        gamma: float,
        step_value: Sequence[int],
        init: float | None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, optimizer=optimizer)
        steps = list(step_value)
        self._check(steps == sorted(steps), "step_value", "be ascending", step_value)
        self._gamma, self._steps = gamma, steps

    def formula(self, t: int, init: float) -> float:
        return init * self._gamma ** bisect.bisect_right(self._steps, t)

    def _save_more(self, serializer):
        serializer("_current_step", bisect.bisect_right(self._steps, self._t))


class PolynomialShift(Schedule):
    """Decays an attribute to zero as init (1 - t / max_count)^rate.

    Args:
        attr: name of the attribute.
        rate: the exponent.
        max_count: number of calls after which the attribute is zero.
        init, target, optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``rate`` is negative, or ``max_count`` not positive.

    Example:
        >>> [PolynomialShift("lr", 2, 10, init=1.0).value(t) for t in (0, 5, 10)]
        [1.0, 0.25, 0.0]
    """

    def __init__(
        self,
        attr: str,
        rate: float,
        max_count: int,
        init: float | None = None,
        target: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, target, optimizer)
        self._check(rate >= 0, "rate", "not be negative", rate)
        self._check(max_count > 0, "max_count", "be positive", max_count)
        self._rate, self._max_count = rate, max_count

    def formula(self, t: int, init: float) -> float:
        return init * max(1 - t / self._max_count, 0) ** self._rate


class StepShift(Schedule):
    """Multiplies an attribute by gamma at every ``step``-th call.

    Args:
        attr: name of the attribute.
        gamma: the factor.
        step: the number of calls from one multiplication to the next.
        init, target, optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``step`` is not positive.

    Example:
        >>> [StepShift("lr", 0.5, 10, init=1.0).value(t) for t in (0, 9, 10, 20)]
        [1.0, 1.0, 0.5, 0.25]
    """

    def __init__(
        self,
        attr: str,
        gamma: float,
        step: int,
        init: float | None = None,
        target: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, target, optimizer)
        self._check(step > 0, "step", "be positive", step)
        self._gamma, self._step = gamma, step

    def formula(self, t: int, init: float) -> float:
        return init * self._gamma ** (t // self._step)


class WarmupShift(Schedule):
    """Changes an attribute linearly from ``warmup_start`` to ``init``, and then no longer sets it.

    Args:
        attr: name of the attribute.
        warmup_start: the value to begin with.
        warmup_iter: the number of calls after which ``init`` is reached.
        init: the value to reach; None means the attribute's value when training starts.
        optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``warmup_iter`` is not positive.

    See P. Goyal et al., Accurate, large minibatch SGD, 2017.

    Example:
        >>> [round(WarmupShift("lr", 0.0, 5, 0.1).value(t), 2) for t in (0, 1, 5)]
        [0.0, 0.02, 0.1]
    """

    def __init__(
        self,
        attr: str,
        warmup_start: float,
        warmup_iter: int,
        init: float | None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, optimizer=optimizer)
        self._check(warmup_iter > 0, "warmup_iter", "be positive", warmup_iter)
        self._start, self._n = warmup_start, warmup_iter

    def formula(self, t: int, init: float) -> float:
        return init if t >= self._n else self._start + (init - self._start) / self._n * t

    def __call__(self, trainer: Trainer) -> None:
        if self._t < self._n:
            super().__call__(trainer)
        else:
            self._t += 1


class CosineShift(Schedule):
    """Decays an attribute by half a cosine wave, after a linear rise from zero.

    The value is target + (init - target) (1 + cos(π (t - warmup) / (max_count - warmup))) / 2, and
    init t / warmup while t is less than ``warmup``.

    Args:
        attr: name of the attribute.
        max_count: number of calls after which the target is reached.
        init: see :class:`Schedule`.
        target: the last value.
        warmup: the number of calls at the beginning in which the attribute rises.
        optimizer: see :class:`Schedule`.

    Raises:
        ValueError: 0 <= warmup < max_count does not hold.

    See I. Loshchilov and F. Hutter, SGDR: stochastic gradient descent with warm restarts, ICLR
    2017.

    Example:
        >>> [round(CosineShift("lr", 10, init=0.2).value(t), 2) for t in (0, 5, 10)]
        [0.2, 0.1, 0.0]
    """

    def __init__(
        self,
        attr: str,
        max_count: int,
        init: float | None = None,
        target: float = 0.0,
        warmup: int = 0,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, optimizer=optimizer)
        self._check(0 <= warmup < max_count, "warmup", f"be at least 0, below {max_count}", warmup)
        self._end, self._warmup, self._n = target, warmup, max_count

    def formula(self, t: int, init: float) -> float:
        if t < self._warmup:
            return init * t / self._warmup
        return _wave(init, self._end, (t - self._warmup) / (self._n - self._warmup))


class OneCycleShift(Schedule):
    """Moves an attribute to a peak and from there to a last value, each by half a cosine wave.

    A second schedule should move the momentum in the opposite direction:
    ``OneCycleShift("momentum", 0.85, n, init=0.95, target=0.95)``.

    Args:
        attr: name of the attribute.
        peak: the value at the peak.
        max_count: number of calls after which the target is reached.
        rise: the fraction of these calls before the peak.
        init: the first value; None means peak / 25.
        target: the last value; None means init / 10,000.
        optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``rise`` is not between 0 and 1, or ``max_count`` is not positive.

    See L. Smith and N. Topin, Super-convergence: very fast training of neural networks using large
    learning rates, 2019.

    Example:
        >>> [round(OneCycleShift("lr", 1.0, 10).value(t), 2) for t in (0, 3, 10)]
        [0.04, 1.0, 0.0]
    """

    def __init__(
        self,
        attr: str,
        peak: float,
        max_count: int,
        rise: float = 0.3,
        init: float | None = None,
        target: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, peak / 25 if init is None else init, optimizer=optimizer)
        self._check(0 < rise < 1, "rise", "lie between 0 and 1", rise)
        self._check(max_count > 0, "max_count", "be positive", max_count)
        self._peak, self._n, self._rise = peak, max_count, rise * max_count
        self._end = self._init / 1e4 if target is None else target

    def formula(self, t: int, init: float) -> float:
        if t < self._rise:
            return _wave(init, self._peak, t / self._rise)
        return _wave(self._peak, self._end, (t - self._rise) / (self._n - self._rise))


def _wave(begin, end, fraction):
    """Returns a value from ``begin`` at fraction 0 to ``end`` at 1, with slope 0 at both ends."""
    return end + (begin - end) * (1 + math.cos(math.pi * min(fraction, 1))) / 2
