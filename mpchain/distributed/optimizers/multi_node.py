"""Optimizers that use the gradients of all ranks."""

import contextlib
import functools
import itertools
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mpchain import observers
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.gradients import replication
from mpchain.distributed.gradients.buckets import GradientReducer
from mpchain.distributed.gradients.control import Control
from mpchain.distributed.gradients.deterministic import DeterministicReducer
from mpchain.distributed.gradients.double_buffering import DoubleBufferingReducer
from mpchain.distributed.gradients.persistents import named_persistents, remember, remembered
from mpchain.distributed.gradients.reducer import Reducer
from mpchain.distributed.optimizers.dry_run import DryRun, warn_of_skipping
from mpchain.distributed.optimizers.parts import Observations, can_be_cut, cut
from mpchain.distributed.optimizers.shared_random import may_draw, random_numbers_of_rank_0
from mpchain.distributed.optimizers.step import Step
from mpchain.functions import counting
from mpchain.link import Link
from mpchain.observers import current, observed, outside, refuse, shown_parts, span
from mpchain.optimizer import Optimizer
from mpchain.parameter_tree import TreeOutline
from mpchain.reporter import report
from mpchain.serializer import AbstractSerializer, MissingKeyError
from mpchain.variable import Variable, as_variable, set_grads

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def create_multi_node_optimizer(
    actual_optimizer: Optimizer,
    communicator: Communicator,
    double_buffering: bool = False,
    zero_fill: bool = True,
    *,
    compression: Callable[..., Any] | None = None,
    batch_counts: bool = True,
) -> "MultiNodeOptimizer":
    """Wraps an optimizer so that every rank applies the mean gradient over the samples of all
    ranks.

    Args:
        actual_optimizer: any optimizer. Its hooks (clipping, weight decay, ...) see the mean
            gradients.
        communicator: the communicator of the ranks.
        double_buffering: whether the sum of gradients may extend into the next step. Each update
            then uses the gradients of the previous step, and the first update uses none. Gradients
            that have not been used are saved with the optimizer.
        zero_fill: whether a gradient that is None on some ranks counts as zeros there; if not, it
            is an error that only some ranks have a gradient.
        compression: a function that sends gradients in fewer bytes
            (:mod:`mpchain.distributed.gradients.compression`). None sends them exactly, unless the
            communicator's ``allreduce_grad_dtype`` is float16.
        batch_counts: whether losses that are means over counts use the counts of the whole batch;
            if not, the loss is the mean of the ranks' means, as in ChainerMN.

    Raises:
        ValueError: ``double_buffering`` or ``compression`` with a reproducible communicator.

    Example:
        >>> model = L.Linear(2, 1, initialW=0, nobias=True)
        >>> optimizer = mpchain.distributed.create_multi_node_optimizer(optimizers.SGD(lr=1), comm)
        >>> optimizer = optimizer.setup(model)
        >>> x = np.full((4, 2), comm.rank + 1, np.float32)  # this rank's samples
        >>> optimizer.update(lambda: F.mean(model(x)))
        >>> model.W.array  # the same on all ranks
        array([[-1., -1.]], dtype=float32)
    """
    reducer = make_reducer(communicator, zero_fill, double_buffering, compression)
    options = zero_fill, reducer, batch_counts
    return MultiNodeOptimizer(actual_optimizer, communicator, *options)


def make_reducer(
    comm: Communicator,
    zero_fill: bool,
    double_buffering: bool = False,
    compression: Callable[..., Any] | None = None,
) -> Reducer:
    """Returns the reducer that :func:`create_multi_node_optimizer` describes.

    Example:
        >>> type(make_reducer(comm, zero_fill=True)).__name__
        'GradientReducer'
    """
    if comm.micro_shards:
        if double_buffering or compression is not None:
            raise ValueError(
                "create_multi_node_optimizer: a reproducible communicator sums gradients exactly "
                "and at once, so double_buffering must be False and compression None"
            )
        return DeterministicReducer(comm, zero_fill=zero_fill)
    make = DoubleBufferingReducer if double_buffering else GradientReducer
    return make(comm, zero_fill=zero_fill, compression=compression)


class OfInner:
    """Descriptor: an attribute of a multi-node optimizer that refers to the wrapped optimizer's
    attribute.

    Args:
        name: the attribute's name.

    Example:
        >>> optimizer = mpchain.distributed.create_multi_node_optimizer(optimizers.SGD(), comm)
        >>> print(type(optimizer).lr.__doc__)
        The wrapped optimizer's ``lr``.
    """

    def __init__(self, name: str):
        self._name = name
        self.__doc__ = f"The wrapped optimizer's ``{name}``."

    def __get__(self, owner: Any, cls: type | None = None) -> Any:
        return self if owner is None else getattr(owner._inner, self._name)

    def __set__(self, owner: Any, value: Any) -> None:
        setattr(owner._inner, self._name, value)


class MultiNodeOptimizer(Optimizer):
    """The optimizer that :func:`create_multi_node_optimizer` returns.

    The attributes and methods that the wrapped optimizer has when it is wrapped or set up, such as
    its hyperparameters, are also attributes of this optimizer, and can be set. Attributes that the
    wrapped optimizer gets later are available only through :attr:`actual_optimizer`.

    Each rank computes the mean loss over its own samples, weighted by its share of the samples of
    all ranks. The sum of the losses over the ranks is therefore the mean over all samples, and its
    gradient is summed over the ranks while backward continues. The wrapped optimizer performs the
    same update on every rank. Collectives inside the loss (:mod:`mpchain.distributed.functions`)
    are therefore differentiated correctly for any division of the batch.

    Parameters are the same on all ranks before they are used. :meth:`setup` copies initialized
    parameters from rank 0. The first update copies other parameters as soon as a forward pass has
    initialized them, and repeats that pass if the ranks' values differed. :meth:`setup` also copies
    persistent values (running statistics). Later each rank updates its own persistent values, see
    :class:`mpchain.distributed.extensions.AllreducePersistent`.

    Random numbers that functions and distributions draw inside a loss function depend on the
    sample: any number of ranks draws the same numbers as one rank with this class
    (:mod:`mpchain.random`). This requires that the optimizer knows which samples of the batch a
    rank has: from :class:`MultiNodeUpdater`, from ``comm.batch``, or because all ranks have equal
    numbers of samples, which are assumed to be in the order of the ranks. Otherwise the ranks draw
    independently of each other. Draws outside a loss function passed to :meth:`update`, and draws
    by the program itself, come from ``numpy.random``.

    Args:
        actual_optimizer, communicator, zero_fill: see :func:`create_multi_node_optimizer`.
        reducer: the object that averages the gradients.
        batch_counts: see :func:`create_multi_node_optimizer`.

    Attributes:
        communicator, zero_fill: the arguments of the same names.
        current_step: the current step, or the latest step between updates.
        n_samples: this rank's number of samples in the next update, which updaters set; 0 for a
            rank that takes part without samples. If it is None on all ranks, the ranks have equal
            weights.

    Example:
        >>> optimizer = mpchain.distributed.create_multi_node_optimizer(optimizers.SGD(), comm)
        >>> optimizer.lr = 0.5
        >>> optimizer.actual_optimizer.lr
        0.5
    """

    communicator: Communicator
    zero_fill = True

    _own_hook: Callable[..., Any] | None = None  # the hook that this class adds

    def __init__(
        self,
        actual_optimizer: Optimizer,
        communicator: Communicator,
        zero_fill: bool,
        reducer: Reducer,
        batch_counts: bool = True,
    ):
        self._inner = actual_optimizer
        self.communicator, self.zero_fill = communicator, zero_fill
        self.current_step = Step(communicator, reducer, batch_counts)
        self._known = {}  # maps the name of each parameter to its id
        self._outline = TreeOutline(Link())  # the model's outline contains only these parameters
        self._known_links = set()  # ids of links whose persistent values are the same on all ranks
        self._waiting = set()  # names of parameters that were uninitialized at the last check
        self._joint_link = None  # the name of a link that all ranks compute together
        self._show_inner()
        communicator.dependents[self] = None

    hyperparam: Any = OfInner("hyperparam")

    if TYPE_CHECKING:  # this class has the wrapped optimizer's attributes, too

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: object) -> None: ...

    else:

        def __getattr__(self, name):
            try:
                return super().__getattribute__(name)
            except AttributeError as error:
                error.add_note("the wrapped optimizer is the attribute actual_optimizer")
                raise

    @property
    def actual_optimizer(self) -> Optimizer:
        """The wrapped optimizer."""
        return self._inner

    @property
    def _reducer(self):
        return self.current_step.reducer

    def _show_inner(self):
        """Adds the public attributes of the wrapped optimizer to this class."""
        for name in dir(self._inner):
            if not (name.startswith("_") or hasattr(MultiNodeOptimizer, name)):
                setattr(MultiNodeOptimizer, name, OfInner(name))

    def setup(self, link: Link) -> Self:
        """Sets the model, and copies its parameters and persistent values from rank 0 to all ranks.

        Parameters that are not initialized yet are copied in the first update.

        Returns:
            The optimizer itself.

        Raises:
            ValueError: the optimizer needs exact gradients, but double buffering or compression is
                set; a link computes with all ranks together, but the communicator is reproducible;
                or the parameters of a link are divided among these ranks.
        """
        if self._inner.takes_closure and not self._reducer.is_exact:
            raise ValueError(
                f"MultiNodeOptimizer.setup: {type(self._inner).__name__} needs the exact gradients "
                "of each loss: double_buffering must be False and compression None"
            )
        self._inner.setup(link)
        self._show_inner()
        self._joint_link = _joint_link(self.communicator, link)
        self._known, self._known_links = {}, set()
        self.current_step.drop_accumulated()
        remember(self.communicator, link)
        self.current_step.draws.set_up()
        self._replicate()
        return self

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context manager: updates inside the block only accumulate gradients, without summing over
        ranks.

        The first update after the block averages over the samples of all these updates. The number
        of updates may differ between ranks, with two exceptions: all ranks must take part in the
        very first update, which may still have to copy parameters; and a link that computes with
        all ranks together (MultiNodeBatchNormalization) communicates in every update.

        Example:
            >>> model = L.Linear(3, 1)
            >>> optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
            >>> loss = lambda x: F.mean(model(x) ** 2)
            >>> first, second = np.ones((4, 3), np.float32), np.ones((2, 3), np.float32)
            >>> with optimizer.no_sync():
            ...     optimizer.n_samples = 4
            ...     optimizer.update(loss, first)
            >>> optimizer.n_samples = 2
            >>> optimizer.update(loss, second)
            >>> optimizer.t
            1
        """
        step = self.current_step
        before, step.exchanges = step.exchanges, False
        try:
            yield
        finally:
            step.exchanges = before

    @observed("optimizer", "optimizer")
    def update(
        self, lossfun: Callable[..., Variable] | None = None, *args: Any, **kwds: Any
    ) -> None:
        """Updates the parameters.

        New parameters, such as the parameters of an added link, are first copied from rank 0.
        Without ``lossfun``, their gradients exist already; if the ranks' values differed, the step
        is skipped, with a warning.

        With a reproducible communicator the loss function is called for one micro-shard at a time.
        Every list, and every array and Variable that has axes, among ``args`` and ``kwds``, also
        within tuples and dicts, is a batch of this rank's samples (within ``comm.batch``, of the
        samples passed there) and is cut along its first axis; Parameters and all other arguments,
        such as models and numbers, stay unchanged.
        Values that the function reports are reported as means over this rank's samples.

        Args:
            lossfun: function of ``args`` and ``kwds`` that returns the loss, the mean over this
                rank's samples; not called if :attr:`n_samples` is 0. If None, the parameters'
                gradients are used unchanged.

        Raises:
            RuntimeError: ``lossfun`` is missing inside ``no_sync``; or the communicator is
                reproducible, and ``lossfun`` is missing or the update is inside ``no_sync``.
            ValueError: the communicator is reproducible, and there is no batch among the arguments,
                their lengths differ, or an argument is a Variable that was computed outside
                ``lossfun``.
        """
        if self._is_elsewhere():
            with self.target.device.create_context():
                return self.update(lossfun, *args, **kwds)
        inner: Any = self.actual_optimizer
        n_parts = self._reducer.parts_per_batch
        if inner.takes_closure and lossfun is not None and not inner.is_evaluating:
            inner.step(functools.partial(self._evaluate, lossfun, args, kwds))
        elif lossfun is not None:
            n, before = self._n_samples(), self.n_samples
            n_like_ranks = observers.n_parts(self)
            if n_like_ranks > 1 and can_be_cut(args, kwds) and self._weights([n]) is None:
                n_parts = n_parts or n_like_ranks
            try:
                if n_parts is None:
                    self.update_in_parts([(n, functools.partial(lossfun, *args, **kwds))])
                else:
                    observations = Observations(cut(lossfun, args, kwds, n, n_parts))
                    self.update_in_parts(observations.parts)
                    report(observations.last() | observations.summary().compute_mean())
            finally:
                self.n_samples = before
        elif not self.current_step.exchanges:
            raise RuntimeError("MultiNodeOptimizer.update: within no_sync it needs a loss function")
        elif n_parts is not None:
            raise RuntimeError(
                "MultiNodeOptimizer.update: a reproducible communicator needs a loss function, "
                "which is called for one micro-shard at a time, and the batch as its arguments"
            )
        elif self._were_alike():
            refuse("a multi-node optimizer updates without a loss function")
            self.current_step.begin_with_gradients(self._n_samples())
            self._finish()

    def _evaluate(self, lossfun, args, kwds):
        """Computes the gradients of the whole batch, and returns its loss."""
        losses, n_samples = [], self.n_samples
        n_parts = self._reducer.parts_per_batch

        def compute_loss(*args, **kwds):
            loss, counts = lossfun(*args, **kwds), counting.current.counts
            if n_parts is not None:
                losses.append(float(loss.array) * counts.share())
                return loss
            own = as_variable(loss.array)
            losses.append(own if counts is None else counts.sum(own * counts.share()))
            return loss

        self.update(compute_loss, *args, **kwds)
        self.n_samples = n_samples
        if n_parts is None:
            return losses[-1].array
        # A repeated pass may have added losses, so only the last ones count. The sum is exact in
        # any order.
        parts = cut(lossfun, args, kwds, self._n_samples(), n_parts)
        last = losses[len(losses) - sum(n > 0 for n, _ in parts) :]
        return math.fsum(itertools.chain(*self.communicator.allgather_obj(last)))

    @observed("optimizer", "optimizer")
    def update_in_parts(
        self,
        parts: Sequence[tuple[float | None, Callable[[], Any] | None]],
        observations: Observations | None = None,
        weights: Sequence[float] | None = None,
    ) -> dict[str, Any] | None:
        """Updates the parameters with a batch that is processed in parts, which saves memory.

        Args:
            parts: pairs of a number of samples, and a function without arguments that computes the
                mean loss over these samples; the function is not called for 0 samples. With a
                reproducible communicator, one pair for each of this rank's micro-shards.
            observations: collects the values that these functions report; None leaves them to the
                reporter.
            weights: weights of the parts, which replace numbers of samples for losses that are
                means over something else, such as words. A part of weight 0 is left out.

        Returns:
            The means of the observations over the samples of all ranks, the same on all ranks;
            None without observations, inside :meth:`no_sync`, and while a GPU's graph captures the
            update.
        """
        if self._is_elsewhere():
            with self.target.device.create_context():
                return self.update_in_parts(parts, observations, weights)
        inner: Any = self.actual_optimizer
        if inner.takes_closure and not inner.is_evaluating:
            raise TypeError(
                f"MultiNodeOptimizer.update_in_parts: {type(inner).__name__} calls the loss "
                "function several times, which parts of a batch and MultiNodeUpdater do not allow: "
                "use optimizer.update(lossfun, *batch) within comm.batch"
            )
        if self._has_new_parameters():
            self._replicate()
        step, recorder = self.current_step, current.recorder
        parts = shown_parts(self, parts)
        weights = self._weights(parts) if weights is None else weights
        step.check([n for n, _ in parts] if weights is None else weights, self._joint_link)
        if recorder is not None:
            recorder = recorder.update_of_ranks(self, parts, observations)
        if current.graph is not None:
            return None  # the graph has captured the update
        counts: list[Any] = [n for n, _ in parts]
        self.n_samples = counts[0] if len(counts) == 1 else sum(counts)
        parts, rows = step.number(parts, self.t, weights)
        if recorder is not None:
            recorder.repeat(self.begin_replay, rows[0] if parts[0][0] is None else 0)
        parts = step.begin(parts, rows, weights)
        with step.counts.in_use():
            self._compute_parts(parts, recorder)
        if not step.exchanges:
            step.accumulate()
            return None
        if weights is not None and step.reducer.n_samples() == 0:
            raise ValueError("MultiNodeOptimizer.update: weight must not be 0 on all ranks")
        outside(self._finish, observations)
        return None if observations is None else step.reducer.message.means()

    def _compute_parts(self, parts, recorder):
        """Computes the losses of all parts and their gradients."""
        step = self.current_step
        reducer = step.active_reducer
        first = next((i for i, (n_part, _) in enumerate(parts, 1) if n_part != 0), 1)
        for i, (n_part, compute_loss) in enumerate(parts, 1):
            is_first = i == first and self._waiting
            with span("forward", "forward", self) as seen:
                loss = self._first_loss(compute_loss, n_part) if is_first else compute_loss()
                seen.result = loss
            weight = reducer.weight(n_part)
            if i == 1 or reducer.parts_per_batch:
                self._scale_accumulated()
            if n_part != 0 and not (is_first and step.skips):
                # Earlier micro-batches only add to the gradients.
                is_last = i == len(parts) and reducer.overlaps and not step.counts.is_sparse()
                self._backward(loss, weight, reducer.ready if is_last else None, recorder)
            del loss
            with span("gradients", "copy gradients"):
                reducer.end_part(n_part)

    def _n_samples(self):
        """Returns this rank's number of samples; None if it is unknown."""
        mine = self.communicator.divided.mine
        return self.n_samples if mine is None else mine.stop - mine.start

    def _weights(self, parts):
        """Returns a list with this rank's weight; None if numbers of samples are the weights."""
        weight = self.communicator.divided.weight
        if weight is not None and len(parts) > 1:
            raise ValueError(
                "MultiNodeOptimizer.update_in_parts: comm.batch has one weight for all parts "
                f"together: pass weights, one for each of the {len(parts)} parts"
            )
        return None if weight is None else [weight]

    def _scale_accumulated(self):
        """Scales the accumulated gradients so that they contribute to the mean over all samples."""
        step = self.current_step
        if not step.n_accumulated:
            set_grads(zip(step.reducer.params, itertools.repeat(None)))
            return
        factor = step.active_reducer.weight(step.n_accumulated)
        for param in self.target.params(include_uninit=False):
            if param.grad is not None:
                param.grad = param.grad * param.dtype.type(factor)

    def add_rank_state(self, link: Link, *names: str) -> None:
        """Declares attributes of a link that hold values of this rank's samples in each batch.

        An example is the hidden state of a recurrent network that continues from batch to batch.
        Files and copies then hold the state of the whole batch, and any number of ranks can divide
        it again. The ranks' samples must be in the order of the ranks, divided by
        ``comm.share_of``.

        Args:
            link: a link of the model.
            names: attributes that are None, or arrays or Variables whose first axis is the axis of
                samples.

        Example:
            >>> model = L.LSTM(3, 2)
            >>> optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
            >>> optimizer.add_rank_state(model, "h", "c")
        """
        self.current_step.rank_states.add(link, names, self.target)

    def fit_to_ranks(self) -> None:
        """Discards the current step, after the communicator has lost ranks.

        Parameters that have lost their values are initialized in the next update.
        """
        self.current_step.fit_to_ranks()
        if self.target is not None:
            params = self._params()
            self._waiting = {name for name, param in params.items() if not param.is_initialized}
            self._reducer.watch(params)

    def connect_trainer(self, trainer: Any) -> None:
        """Connects the optimizer to a trainer; called by the updater when the trainer is made."""
        self.communicator.record_failures(trainer.out)

    def agree_on_signal(self, number: int | None) -> int | None:
        """Returns on all ranks the signal that any rank has received, so that all ranks end
        together.

        Updaters call the method before each iteration; see
        :meth:`mpchain.training.updaters.Updater.agree_on_signal`. With several ranks, the signal
        travels with the next step; all ranks know it afterwards. If no step was done since the last
        call, this method waits for the other ranks.
        """
        if self.communicator.size == 1:
            return number
        self._reducer.message.wait()
        control = Control.of(self.communicator)
        if number is not None:
            control.ask(number)
        taken = [known for known in _SIGNALS if control.take(known)] if control.agree() else []
        return taken[0] if taken else None

    def rank_times(self) -> np.ndarray | None:
        """Returns the seconds that each rank has worked and waited, which the ranks send with
        steps; see :meth:`mpchain.training.updaters.Updater.rank_times`."""
        if self.communicator.size == 1:
            return None
        return Control.of(self.communicator).times.copy()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the wrapped optimizer, and gradients that were not yet sent or used.

        Gradients that have not been sent differ between ranks, so all ranks should save snapshots.
        """
        self._inner.serialize(serializer)
        self.current_step.rank_states.serialize(serializer["rank_states"])
        # A file lacks these states if a single process wrote it.
        with contextlib.suppress(MissingKeyError):
            self.current_step.draws.serialize(serializer["exchange"])
            self._reducer.serialize(serializer["exchange"])

    def _finish(self, observations=None):
        """Averages the gradients over the ranks and lets the wrapped optimizer update the
        parameters."""
        step, reducer = self.current_step, self._reducer
        step.end_losses()
        if self.has_dynamic_loss_scale and not reducer.allows_dynamic_loss_scale:
            raise RuntimeError(
                "MultiNodeOptimizer.update: double_buffering uses gradients of the previous step, "
                "which belong to another loss scale: use a constant loss scale"
            )
        draws = may_draw(self._inner, reducer.params, self._own_hook)
        by_part = reducer.parts_per_batch is not None
        sums = () if observations is None else observations.sums(by_part=by_part)
        if step.finish(sums, draws=draws) > 0:
            self._step(reducer.message.have_equal_random_states() if draws else True)

    def _step(self, draws_alike):
        """Lets the wrapped optimizer update the parameters; hooks draw the same random numbers on
        all ranks."""
        if draws_alike:
            self._inner.update(None)
        else:
            with random_numbers_of_rank_0(self.communicator):
                self._inner.update(None)

    # Captured steps use these methods.

    def why_not_replayed(
        self, parts: Sequence[tuple[int | None, Any]], observations: Observations | None
    ) -> str | None:
        """Returns the reason why an update does more than compute a loss and its gradients and send
        one message; None if it does not."""
        step = self.current_step
        if len(parts) > 1 or step.reducer.parts_per_batch or step.n_accumulated:
            return "a multi-node optimizer processes the batch in parts"
        if not (step.reducer.can_be_replayed and step.exchanges):
            return "gradients are not summed in the step that computes them"
        if self._waiting or self._joint_link is not None or parts[0][0] == 0:
            return "ranks exchange more than gradients"
        if observations is not None and not observations.is_kept:
            return "reports are combined by another object in each step"
        return None

    def computes_no_loss(self) -> bool:
        """Returns whether this rank's batch has no weight in an update of one part."""
        weight = self.communicator.divided.weight
        return (self._n_samples() if weight is None else weight) == 0

    def why_not_in_graphs(self) -> str | None:
        """Returns the reason why a GPU's graph cannot hold an update; None if it can hold one."""
        comm = self.communicator
        if comm.size > 1 and not comm.is_connected:
            return "gradients are not summed by NCCL"
        if comm.is_elastic:
            return "an elastic job may lose ranks"
        if comm.size > 1 and not comm.is_captured_alike:
            return "only some ranks could capture a step before"
        if self.has_dynamic_loss_scale:
            return "the loss scale of an optimizer is dynamic"
        if may_draw(self._inner, self._reducer.params, self._own_hook):
            return "hooks may draw random numbers, which ranks share"
        return self._reducer.why_not_in_graphs()

    def are_equal(self, number: int) -> bool:
        """Waits for all ranks, and returns whether ``number`` is the same on all of them."""
        return Control.of(self.communicator).compare(number)[0]

    def begin_replay(self, n_own: int, *, in_graph: bool = False) -> int:
        """Begins the messages of a step whose batch has one part.

        Args:
            n_own: this rank's number of samples, used if the optimizer does not know it.
            in_graph: whether a graph holds the sums of gradients.

        Returns:
            This rank's number of samples.
        """
        n, step = self._n_samples(), self.current_step
        n_own = n_own if n is None else n
        step.begin([(n, None)], [n_own], self._weights([n]), in_graph=in_graph)
        if not in_graph:
            step.draws.count(n_own)
        return n_own

    def own_factor(self) -> float:
        """Returns the factor of this rank's loss, in a step whose batch has one part."""
        scale = self._inner.loss_scale
        return self.current_step.own_weight() * (1 if scale is None else scale)

    def begin_backward(self) -> float:
        """Clears the gradients; returns the result of :meth:`own_factor`."""
        self.target.cleargrads()
        return self.own_factor()

    def _params(self):
        return dict(self.target.namedparams())

    def _backward(self, loss, weight, on_leaf, recorder):
        if not isinstance(loss, Variable):
            raise TypeError(
                "MultiNodeOptimizer.update: the loss function must return a Variable, "
                f"not {type(loss).__name__}"
            )
        if recorder is not None:
            loss.grad = recorder.number(self.begin_backward, loss.array)
            if self.communicator.size > 1:
                on_leaf = recorder.on_leaf(self.current_step.ready)
        scale = self._factor
        if weight != 1:
            scale = weight * (1 if scale is None else scale)
        loss.backward(loss_scale=scale, on_leaf=on_leaf)

    def _has_new_parameters(self):
        """Returns whether parameters may not be the same on all ranks yet."""
        target = self.target
        if target is None:
            raise RuntimeError("MultiNodeOptimizer.update: call setup with a link before update")
        if not self._outline.describes(target):
            if self._known != _ids(target.namedparams()):
                return True
            self._outline = TreeOutline(target)
        return bool(self._waiting)

    def _were_alike(self):
        """Makes new parameters the same on all ranks; returns whether they were the same
        already."""
        if not self._has_new_parameters():
            return True
        alike = replication.are_alike(self.communicator, self._new_parameters())
        self._replicate()
        if not alike:
            self.current_step.drop_accumulated()
            warn_of_skipping(self.communicator, "Pass a loss function to update to lose no step")
        return alike

    def _first_loss(self, compute_loss, n_part):
        """Returns the loss; ensures that its parameters are initialized to the same values on all
        ranks. If this is not possible, the step is skipped."""
        comm, step = self.communicator, self.current_step
        with DryRun(remembered(comm).values(), comm) as dry_run:
            loss = compute_loss()
            step.counts.end_rounds()
        outcome = dry_run.agree(self._new_parameters())
        if outcome == "skip":
            weight, step.skips = step.active_reducer.weight(n_part), True
            if n_part != 0:  # other ranks wait for gradients of arrays that they sent
                self._backward(loss, weight, None, None)
            else:
                compute_loss()
            step.counts.end()
        self._replicate()
        if outcome != "repeat":
            dry_run.keep()
            return compute_loss() if outcome == "keep" and n_part == 0 else loss
        dry_run.undo()
        step.counts.repeat()
        with dry_run.initial_values():
            return compute_loss()

    def _new_parameters(self):
        """Returns a dict from name to each parameter that was uninitialized or missing at the last
        check."""
        return {
            name: param
            for name, param in self._params().items()
            if name in self._waiting or self._known.get(name) != id(param)
        }

    def _replicate(self):
        """Makes new parameters and persistent values the same on all ranks."""
        params, new = self._params(), self._new_parameters()
        persistents = {
            path: persistent
            for path, persistent in named_persistents(self.target).items()
            if id(persistent.link) not in self._known_links
        }
        with self.target.device.create_context():
            replication.replicate(self.communicator, new, persistents)
        self._known_links = {id(link) for link in self.target.links()}
        known = _ids(params.items())
        waiting = {name for name, param in new.items() if not param.is_initialized}
        if known != self._known or waiting != self._waiting:
            self._reducer.watch(params)
        self._known, self._waiting = known, waiting


_OF_INNER = (
    "target t epoch use_auto_new_epoch new_epoch add_hook remove_hook call_hooks call_hook "
    "rules_and_params loss_scale set_loss_scale loss_scaling check_nan_in_grads is_safe_to_update "
    "update_loss_scale _hooks _is_safe _loss_scale _loss_scale_growth scale_on_gpu"
).split()
for _name in _OF_INNER:
    setattr(MultiNodeOptimizer, _name, OfInner(_name))


def _joint_link(comm: Communicator, model: Link) -> str | None:
    """Returns the name of a link that computes with all ranks together; None if there is none."""
    found = None
    for name, link in model.namedlinks():
        if link.needs_all_ranks:
            found = found or name
            if comm.micro_shards:
                raise ValueError(
                    f"MultiNodeOptimizer.setup: {name} computes with all ranks together, so its "
                    "results depend on the number of ranks, which a reproducible communicator "
                    "must not allow: normalize each micro-shard separately "
                    "(BatchNormalization), or by layer or group"
                )
        if link.divided_among is comm:
            raise ValueError(
                f"MultiNodeOptimizer.setup: the parameters of {name} are divided among these "
                "ranks, and cannot be made the same on all ranks: pass a communicator of "
                "ranks that have the same parts, or use the wrapped optimizer alone"
            )
    return found


def _ids(named_params):
    return {name: id(param) for name, param in named_params}
