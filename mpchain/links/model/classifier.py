"""Classifiers: models with a loss."""

from collections.abc import Callable
from typing import Any

from mpchain import functions as F
from mpchain import reporter
from mpchain.link import Chain, Link
from mpchain.variable import Variable


class Classifier(Chain):
    """A model with a loss. A call with inputs and labels returns the loss.

    Each call reports ``loss`` and, unless ``compute_accuracy`` is False, ``accuracy``.

        >>> model = L.Classifier(L.Linear(3, 10))
        >>> loss = model(np.ones((5, 3), np.float32), np.zeros(5, np.int32))

    Args:
        predictor: the model; stored as the child ``predictor``.
        lossfun: function of predictions and labels that returns the loss.
        accfun: function of predictions and labels that returns the accuracy.
        label_key: the argument with the labels: a position (int) or a name (str).

    Attributes:
        y, loss, accuracy (Variable): predictions, loss and accuracy of the latest call; None if not
            computed.
        compute_accuracy (bool): whether to compute the accuracy.

    Raises:
        TypeError: ``label_key`` is neither int nor str.
    """

    def __init__(
        self,
        predictor: Link,
        lossfun: Callable[..., Any] = F.softmax_cross_entropy,
        accfun: Callable[..., Any] = F.accuracy,
        label_key: int | str = -1,
    ) -> None:
        if not isinstance(label_key, (int, str)):
            raise TypeError(
                f"Classifier: label_key must be an int or a str, not {type(label_key).__name__}"
            )
        super().__init__()
        self.lossfun = lossfun
        self.accfun = accfun
        self.label_key = label_key
        self.compute_accuracy = True
        self.y = self.loss = self.accuracy = None
        with self.init_scope():
            self.predictor = predictor

    def forward(self, *args: Any, **kwargs: Any) -> Variable:
        """Computes the loss.

        Args:
            args, kwargs: the arguments of the predictor, and the labels in the argument
                ``label_key``.

        Returns:
            Variable: the loss.

        Raises:
            ValueError: the argument ``label_key`` is missing, or a positional argument with the
                labels is the only argument.
        """
        t, rest, kwargs = self._take_labels(args, kwargs)
        self.y = self.loss = self.accuracy = None
        self.y = self.predictor(*rest, **kwargs)
        self.loss = self.lossfun(self.y, t)
        reporter.report({"loss": self.loss}, self)
        if self.compute_accuracy:
            self.accuracy = self.accfun(self.y, t)
            reporter.report({"accuracy": self.accuracy}, self)
        return self.loss

    def _take_labels(self, args, kwargs):
        key = self.label_key
        if isinstance(key, str):
            if key not in kwargs:
                raise ValueError(
                    f"Classifier: there is no argument {key!r} to take the labels from"
                )
            return kwargs.pop(key), args, kwargs
        if not -len(args) <= key < len(args):
            raise ValueError(
                f"Classifier: there is no positional argument {key} to take the labels from; "
                f"there are {len(args)}"
            )
        if len(args) == 1 and not kwargs:
            raise ValueError("Classifier: pass inputs and labels; only one argument was given")
        args = list(args)
        return args.pop(key), args, kwargs
