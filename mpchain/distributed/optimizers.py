"""Optimizers that step by the gradients of all ranks."""

import functools
import warnings

from mpchain.configuration import using_config
from mpchain.distributed import parameters
from mpchain.distributed.buckets import GradientReducer
from mpchain.distributed.rehearsal import Rehearsal
from mpchain.variable import Variable


def create_multi_node_optimizer(
    actual_optimizer, communicator, double_buffering=False, zero_fill=True
):
    """Makes an optimizer step by the mean of the gradients over the samples of all ranks.

    Args:
        actual_optimizer (Optimizer): any optimizer. Its hooks (clipping, weight decay, ...) see the
            mean gradients.
        communicator (Communicator): the ranks.
        double_buffering (bool): only False so far.
        zero_fill (bool): whether a gradient that is None on some ranks counts as zeros there; if
            not, it is an error.

    Returns:
        MultiNodeOptimizer

    Raises:
        ValueError: ``double_buffering`` is asked for.
    """
    if double_buffering:
        raise ValueError(
            "create_multi_node_optimizer: double_buffering is for NCCL communicators and not yet "
            "provided; gradients are exchanged while backward goes on without it"
        )
    return MultiNodeOptimizer(actual_optimizer, communicator, zero_fill)


class MultiNodeOptimizer:
    """What :func:`create_multi_node_optimizer` returns; all else is the wrapped optimizer's.

    Each rank computes the gradient of the mean loss over its own samples. They are averaged with
    the numbers of samples as weights, while backward goes on, and the wrapped optimizer takes its
    step on every rank alike.

    Parameters are the same on all ranks before they are used: those that are initialised are made
    so by :meth:`setup`, the others as soon as a forward pass has initialised them, which is then
    repeated. So the first update is a real one.

    Attributes:
        actual_optimizer, communicator, zero_fill: as given.
        n_samples (int): this rank's number of samples in the next update, which updaters set; 0 for
            a rank that has none, but takes part. None on all ranks weighs the ranks equally.
    """

    _own = frozenset(
        (
            "actual_optimizer",
            "communicator",
            "zero_fill",
            "n_samples",
            "_known",
            "_waiting",
            "_reducer",
        )
    )

    def __init__(self, actual_optimizer, communicator, zero_fill):
        self.actual_optimizer = actual_optimizer
        self.communicator = communicator
        self.zero_fill = zero_fill
        self.n_samples = None
        self._known = {}  # id of each parameter by name
        self._waiting = set()  # names of those that were not initialised when last looked at
        self._reducer = GradientReducer(communicator, zero_fill=zero_fill)

    def __getattr__(self, name):
        if name in self._own:  # being copied: there is nothing to ask yet
            raise AttributeError(name)
        return getattr(self.actual_optimizer, name)

    def __setattr__(self, name, value):
        if name in self._own:
            object.__setattr__(self, name, value)
        else:
            setattr(self.actual_optimizer, name, value)

    def setup(self, link):
        """Sets the model, and makes its initialised parameters those of rank 0 on all ranks.

        Returns:
            The optimizer itself.
        """
        self.actual_optimizer.setup(link)
        self._known = {}
        self._synchronise()
        return self

    def update(self, lossfun=None, *args, **kwds):
        """Updates the parameters.

        A step whose gradients were computed with parameters that were not yet the same on all ranks
        is left out, with a warning. That can happen once, if a forward pass outside of ``lossfun``
        initialised them.

        Args:
            lossfun: function of ``args`` and ``kwds`` that returns the loss, the mean over this
                rank's samples; not called if :attr:`n_samples` is 0. If None, the parameters'
                gradients are used as they are.
        """
        if lossfun is not None:
            part = self.n_samples, functools.partial(lossfun, *args, **kwds)
            self.update_in_parts([] if self.n_samples == 0 else [part])
        elif self._may_step():
            self._reducer.begin(self.n_samples)
            self._finish()

    def update_in_parts(self, parts):
        """Updates the parameters by a batch that is worked through in parts, which saves memory.

        Args:
            parts: list of pairs: a number of samples, and a function without arguments that
                computes the mean loss over them. Empty on a rank that has no samples.
        """
        if not self._may_step():
            return
        if len(parts) != 1:
            self.n_samples = sum(n for n, _ in parts)
        self._reducer.begin(self.n_samples)
        loss = self._first_loss(parts[0][1] if parts else _no_loss)
        self.target.cleargrads()
        for i, (n, compute_loss) in enumerate(parts):
            if i > 0:
                loss = compute_loss()
            # Earlier parts only add to the gradients.
            with using_config("leaf_ready", self._reducer.ready if i == len(parts) - 1 else None):
                self._backward(loss, 1 if len(parts) == 1 else n / self.n_samples)
            del loss
        self._finish()

    def _finish(self):
        """Averages the gradients over the ranks and lets the wrapped optimizer step by them."""
        if self._reducer.finish() > 0:
            self.actual_optimizer.update(None)

    def _params(self):
        return dict(self.target.namedparams())

    def _backward(self, loss, share):
        if not isinstance(loss, Variable):
            raise TypeError(
                "MultiNodeOptimizer.update: the loss function must return a Variable, "
                f"not {type(loss).__name__}"
            )
        scale = self.actual_optimizer._loss_scale
        if share != 1:
            scale = share * (1 if scale is None else scale)
        loss.backward(loss_scale=scale)

    def _may_step(self):
        """Makes new parameters the same on all ranks; returns whether they were so before."""
        if self.target is None:
            raise RuntimeError("MultiNodeOptimizer.update: call setup with a link before")
        known = {name: id(param) for name, param in self._params().items()}
        if known == self._known and not self._waiting:
            return True
        if not self._synchronise():
            return True
        if self.communicator.rank == 0:
            warnings.warn(
                "MultiNodeOptimizer.update: this step is left out, because its gradients were "
                "computed with initial parameters that differed between ranks; from now on they "
                "are the same",
                RuntimeWarning,
                stacklevel=3,
            )
        return False

    def _first_loss(self, compute_loss):
        """Returns the loss, computed with parameters that are the same on all ranks."""
        if not self._waiting:
            return compute_loss()
        with Rehearsal(self.target) as rehearsal:
            loss = compute_loss()
        n_waiting = len(self._waiting)
        self._synchronise()
        if len(self._waiting) == n_waiting:
            return loss
        rehearsal.undo()
        return compute_loss()

    def _synchronise(self):
        """Makes parameters that are new or were waiting the same on all ranks; returns whether some
        were not."""
        params = self._params()
        known = {name: id(param) for name, param in params.items()}
        new = {
            k: v for k, v in params.items() if k in self._waiting or self._known.get(k) != known[k]
        }
        differing = parameters.synchronise(self.communicator, new)
        waiting = {name for name, param in new.items() if not param.is_initialized}
        if known != self._known or waiting != self._waiting:
            self._reducer.watch({k: v for k, v in params.items() if k not in waiting})
        self._known, self._waiting = known, waiting
        return bool(differing)


def _no_loss():
    return None
