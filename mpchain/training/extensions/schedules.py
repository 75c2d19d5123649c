"""Schedules: extensions that set a hyperparameter, such as the learning rate, over time.

Each is one formula, :meth:`Schedule.value`, so a loop without a trainer uses them, too::

    schedule = CosineShift("lr", 1000, init=0.1)
    for t in range(1000):
        optimizer.lr = schedule.value(t)
        optimizer.update(loss, x)
"""

import bisect
import math

from mpchain.serializer import Deserializer
from mpchain.training.extension import Extension


class Schedule(Extension):
    """Base of schedules: at its t-th call, sets an attribute of an optimizer to ``value(t)``.

    ``value(0)`` is set before training starts. A resumed schedule goes on where it was.

    A subclass defines :meth:`formula`.

    Args:
        attr (str): name of the attribute, such as ``'lr'``.
        init (float): its initial value; None means the one that it has when training starts.
        target (float): the value at which to stop; None for no limit.
        optimizer (Optimizer): whose attribute it is; None means the updater's ``'main'`` optimizer.
    """

    def __init__(self, attr, init=None, target=None, optimizer=None):
        self._attr, self._init, self._target, self._optimizer = attr, init, target, optimizer
        self._t = 0

    def formula(self, t, init):
        """Returns the value after ``t`` calls, the target aside; ``init`` is the initial value."""
        raise NotImplementedError(f"{type(self).__name__} does not implement formula")

    def value(self, t):
        """Returns the value that belongs to the time ``t``.

        Args:
            t (int): number of calls, that is of iterations or whatever else the trigger says.

        Raises:
            ValueError: the initial value was not given, and training has not started.
        """
        if self._init is None:
            raise ValueError(
                f"{type(self).__name__}.value: give init, since no optimizer says yet "
                f"what {self._attr!r} is at first"
            )
        value = self.formula(t, self._init)
        if self._target is not None:
            lower, upper = sorted((self._init, self._target))
            value = min(max(value, lower), upper)
        return value

    def initialize(self, trainer):
        optimizer = self._optimizer or trainer.updater.get_optimizer("main")
        if not hasattr(optimizer, self._attr):
            raise ValueError(
                f"{type(self).__name__}: attr must name an attribute of the optimizer, "
                f"and {type(optimizer).__name__} has no {self._attr!r}"
            )
        self._optimizer = optimizer
        if self._init is None:
            self._init = getattr(optimizer, self._attr)
        self._set()

    def _set(self):
        setattr(self._optimizer, self._attr, self.value(self._t))

    def __call__(self, trainer):
        if self._optimizer is None or self._init is None:
            self.initialize(trainer)
        self._t += 1
        self._set()

    def serialize(self, serializer):
        self._t = serializer("_t", self._t)
        if isinstance(serializer, Deserializer):
            if self._optimizer is not None and self._init is not None:
                self._set()  # the snapshot was loaded after training had started
        elif self._init is not None:
            self._save_more(serializer)  # which Chainer wants; here it follows from the time

    def _save_more(self, serializer):
        serializer("_last_value", self.value(self._t))

    def _check(self, is_right, argument, rule, value):
        if not is_right:
            raise ValueError(f"{type(self).__name__}: {argument} must {rule}, not {value}")


class ExponentialShift(Schedule):
    """Multiplies an attribute by a rate at each call: init rate^t.

    Args:
        attr (str): name of the attribute.
        rate (float): the factor.
        init, target, optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``rate`` is negative.
    """

    def __init__(self, attr, rate, init=None, target=None, optimizer=None):
        super().__init__(attr, init, target, optimizer)
        self._check(rate >= 0, "rate", "not be negative", rate)
        self._rate = rate

    def formula(self, t, init):
        return init * self._rate**t


class InverseShift(Schedule):
    """Lets an attribute follow init (1 + gamma t)^-power.

    Args:
        attr (str): name of the attribute.
        gamma, power (float): see above.
        init, target, optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``gamma`` is negative.
    """

    def __init__(self, attr, gamma, power, init=None, target=None, optimizer=None):
        super().__init__(attr, init, target, optimizer)
        self._check(gamma >= 0, "gamma", "not be negative", gamma)
        self._gamma, self._power = gamma, power

    def formula(self, t, init):
        return init * (1 + self._gamma * t) ** -self._power


class LinearShift(Schedule):
    """Moves an attribute evenly from one value to another, and keeps it there.

    Args:
        attr (str): name of the attribute.
        value_range (pair of float): the first and the last value.
        time_range (pair of int): the numbers of calls after which it begins and ends to move.
        optimizer: see :class:`Schedule`.

    Raises:
        ValueError: the times are not ascending.
    """

    def __init__(self, attr, value_range, time_range, optimizer=None):
        super().__init__(attr, value_range[0], optimizer=optimizer)
        self._check(time_range[0] < time_range[1], "time_range", "be ascending", time_range)
        self._end, self._time_range = value_range[1], time_range

    def formula(self, t, init):
        begin, end = self._time_range
        fraction = min(max((t - begin) / (end - begin), 0), 1)
        return (1 - fraction) * init + fraction * self._end


class MultistepShift(Schedule):
    """Multiplies an attribute by gamma at each of some times.

    Args:
        attr (str): name of the attribute.
        gamma (float): the factor.
        step_value (sequence of int): the numbers of calls, ascending.
        init, optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``step_value`` is not ascending.
    """

    def __init__(self, attr, gamma, step_value, init, optimizer=None):
        super().__init__(attr, init, optimizer=optimizer)
        steps = list(step_value)
        self._check(steps == sorted(steps), "step_value", "be ascending", step_value)
        self._gamma, self._steps = gamma, steps

    def formula(self, t, init):
        return init * self._gamma ** bisect.bisect_right(self._steps, t)

    def _save_more(self, serializer):
        serializer("_current_step", bisect.bisect_right(self._steps, self._t))


class PolynomialShift(Schedule):
    """Lets an attribute fall to zero as init (1 - t / max_count)^rate.

    Args:
        attr (str): name of the attribute.
        rate (float): the exponent.
        max_count (int): number of calls after which it is zero.
        init, target, optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``rate`` is negative, or ``max_count`` not positive.
    """

    def __init__(self, attr, rate, max_count, init=None, target=None, optimizer=None):
        super().__init__(attr, init, target, optimizer)
        self._check(rate >= 0, "rate", "not be negative", rate)
        self._check(max_count > 0, "max_count", "be positive", max_count)
        self._rate, self._max_count = rate, max_count

    def formula(self, t, init):
        return init * max(1 - t / self._max_count, 0) ** self._rate


class StepShift(Schedule):
    """Multiplies an attribute by gamma at every ``step``-th call.

    Args:
        attr (str): name of the attribute.
        gamma (float): the factor.
        step (int): the number of calls.
        init, target, optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``step`` is not positive.
    """

    def __init__(self, attr, gamma, step, init=None, target=None, optimizer=None):
        super().__init__(attr, init, target, optimizer)
        self._check(step > 0, "step", "be positive", step)
        self._gamma, self._step = gamma, step

    def formula(self, t, init):
        return init * self._gamma ** (t // self._step)


class WarmupShift(Schedule):
    """Moves an attribute evenly from a start to its initial value; then leaves it to others.

    Args:
        attr (str): name of the attribute.
        warmup_start (float): the value to begin with.
        warmup_iter (int): the number of calls.
        init (float): the value to reach.
        optimizer: see :class:`Schedule`.

    Raises:
        ValueError: ``warmup_iter`` is not positive.

    See P. Goyal et al., Accurate, large minibatch SGD, 2017.
    """

    def __init__(self, attr, warmup_start, warmup_iter, init, optimizer=None):
        super().__init__(attr, init, optimizer=optimizer)
        self._check(warmup_iter > 0, "warmup_iter", "be positive", warmup_iter)
        self._start, self._n = warmup_start, warmup_iter

    def formula(self, t, init):
        return init if t >= self._n else self._start + (init - self._start) / self._n * t

    def __call__(self, trainer):
        if self._t < self._n:
            super().__call__(trainer)
        else:
            self._t += 1


class CosineShift(Schedule):
    """Lets an attribute fall by half a wave of the cosine, after an even rise from zero.

    target + (init - target) (1 + cos(π (t - warmup) / (max_count - warmup))) / 2, and
    init t / warmup before that.

    Args:
        attr (str): name of the attribute.
        max_count (int): number of calls after which the target is reached.
        init, optimizer: see :class:`Schedule`.
        target (float): the last value.
        warmup (int): number of calls, among them, in which the attribute rises.

    Raises:
        ValueError: not 0 <= warmup < max_count.

    See I. Loshchilov and F. Hutter, SGDR: stochastic gradient descent with warm restarts, ICLR
    2017.
    """

    def __init__(self, attr, max_count, init=None, target=0.0, warmup=0, optimizer=None):
        super().__init__(attr, init, optimizer=optimizer)
        self._check(0 <= warmup < max_count, "warmup", f"be at least 0, below {max_count}", warmup)
        self._end, self._warmup, self._n = target, warmup, max_count

    def formula(self, t, init):
        if t < self._warmup:
            return init * t / self._warmup
        return _wave(init, self._end, (t - self._warmup) / (self._n - self._warmup))


class OneCycleShift(Schedule):
    """Lets an attribute rise to a peak and fall below where it began, each by half a cosine wave.

    The momentum, which runs the other way, takes another one of these:
    ``OneCycleShift("momentum", 0.85, n, init=0.95, target=0.95)``.

    Args:
        attr (str): name of the attribute.
        peak (float): its extreme value.
        max_count (int): number of calls after which the target is reached.
        rise (float): the fraction of them that leads to the peak.
        init (float): the first value; None means peak / 25.
        target (float): the last value; None means init / 10,000.
        optimizer: see :class:`Schedule`.

    Raises:
        ValueError: not 0 < rise < 1, or ``max_count`` is not positive.

    See L. Smith and N. Topin, Super-convergence: very fast training of neural networks using large
    learning rates, 2019.
    """

    def __init__(self, attr, peak, max_count, rise=0.3, init=None, target=None, optimizer=None):
        super().__init__(attr, peak / 25 if init is None else init, optimizer=optimizer)
        self._check(0 < rise < 1, "rise", "lie between 0 and 1", rise)
        self._check(max_count > 0, "max_count", "be positive", max_count)
        self._peak, self._n, self._rise = peak, max_count, rise * max_count
        self._end = self._init / 1e4 if target is None else target

    def formula(self, t, init):
        if t < self._rise:
            return _wave(init, self._peak, t / self._rise)
        return _wave(self._peak, self._end, (t - self._rise) / (self._n - self._rise))


def _wave(begin, end, fraction):
    """From ``begin`` at the fraction 0 to ``end`` at 1, level at both ends."""
    return end + (begin - end) * (1 + math.cos(math.pi * min(fraction, 1))) / 2
