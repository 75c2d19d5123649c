"""The extension that observes a quotient of sums."""

from mpchain.training.extension import PRIORITY_EDITOR, Extension
from mpchain.training.states import serialize_part_if_stored
from mpchain.training.triggers import get_trigger


class MicroAverage(Extension):
    """Observes the quotient of the sums of two observed values over an interval of iterations.

    So a mean over batches of different sizes is a mean over samples.

    Args:
        numerator_key: name of the value to sum in the numerator.
        denominator_key: name of the value to sum in the denominator.
        result_key: name of the quotient.
        trigger: the interval; see :func:`get_trigger`.
    """

    priority = PRIORITY_EDITOR

    def __init__(self, numerator_key, denominator_key, result_key, trigger=(1, "epoch")):
        self._numerator_key = numerator_key
        self._denominator_key = denominator_key
        self._result_key = result_key
        self._trigger = get_trigger(trigger)
        self._numerator = self._denominator = 0

    def __call__(self, trainer):
        """Adds the values of this iteration; observes the quotient if the interval ends here.

        An iteration that reports neither value is left out.

        Raises:
            KeyError: only one of the values was reported.
            ZeroDivisionError: the interval ends, and the denominator is 0.
        """
        observation = trainer.observation
        keys = [self._numerator_key, self._denominator_key]
        if any(key in observation for key in keys):
            for key in keys:
                if key not in observation:
                    raise KeyError(
                        f"MicroAverage: {key!r} was not reported at iteration "
                        f"{trainer.updater.iteration}, unlike its counterpart"
                    )
            numerator, denominator = (_as_number(observation[key]) for key in keys)
            self._numerator += numerator
            self._denominator += denominator
        if self._trigger(trainer):
            self._observe(observation)

    def _observe(self, observation):
        if self._denominator == 0:
            raise ZeroDivisionError(
                f"MicroAverage: the sum of {self._denominator_key!r} over the interval is 0, or it "
                "was never reported"
            )
        observation[self._result_key] = self._numerator / self._denominator
        self._numerator = self._denominator = 0

    def serialize(self, serializer):
        """Saves or restores the interval and the sums so far."""
        serialize_part_if_stored(self._trigger, serializer["_trigger"])
        self._numerator = serializer("_numerator", self._numerator)
        self._denominator = serializer("_denominator", self._denominator)


def _as_number(value):
    value = getattr(value, "array", value)
    return value.item() if hasattr(value, "item") else value
