"""Supports communicators that programs define and that average gradients in their own way."""

import abc
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mpchain.distributed import extensions, optimizers
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import partition
from mpchain.optimizer import GradientMethod, Optimizer
from mpchain.training import Trainer

_ABSTRACT = (
    "allgather allreduce allreduce_obj alltoall bcast bcast_obj gather gather_obj recv recv_obj "
    "scatter send send_obj split"
).split()
_PLACES = "inter_rank inter_size intra_rank intra_size rank size".split()


def _undefined(name: str) -> Any:
    def method(self, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} does not define {name}")

    return method


def _pass(comm: Any, user: Any, reason: str) -> None:
    """Does nothing, because a program's own communicator cannot continue after a rank is lost."""


class CommunicatorBase(abc.ABC):
    """The interface of ChainerMN's communicators; programs derive their own communicators from it.

    ``create_multi_node_optimizer``, ``create_multi_node_evaluator`` and ``scatter_dataset`` accept
    such communicators. mpchain's communicators count as instances, too.
    """

    def __init__(self) -> None:
        self._configs = {}

    def set_config(self, name: str, value: object = True, **kwargs: Any) -> None:
        """Raises ValueError, because only subclasses have configuration entries."""
        raise ValueError(f"Unknown config: {name}")

    def get_config(self, name: str | None = None) -> Any:
        """Returns an entry of the configuration, or all entries."""
        return self._configs if name is None else self._configs[name]

    @contextlib.contextmanager
    def config_scope(self) -> Iterator["CommunicatorBase"]:
        """Context manager: yields the communicator."""
        yield self

    if TYPE_CHECKING:  # _ABSTRACT defines these methods at run time

        def bcast_obj(self, obj: object) -> Any: ...
        def gather_obj(self, obj: object) -> list[Any] | None: ...

    def broadcast_data(self, model: object) -> None:
        """Calls ``bcast_data``."""
        self.bcast_data(model)

    def allreduce_grad(self, model: object, zero_fill: bool = False) -> None:
        """Calls ``multi_node_mean_grad``."""
        self.multi_node_mean_grad(model, zero_fill)

    def allgather_obj(self, obj: object) -> list[Any]:
        """Returns the objects of all ranks."""
        return self.bcast_obj(self.gather_obj(obj))

    refuse_to_lose_ranks = _pass

    def finalize(self) -> None:
        """Discards the configuration."""
        self._configs = {}

    @abc.abstractmethod
    def bcast_data(self, model: object) -> None:
        """Sends the parameters of rank 0 to all ranks."""

    @abc.abstractmethod
    def multi_node_mean_grad(self, model: object, zero_fill: bool = False) -> None:
        """Replaces gradients with their means over the ranks."""


for _name in _ABSTRACT:
    setattr(CommunicatorBase, _name, abc.abstractmethod(_undefined(_name)))
CommunicatorBase.__abstractmethods__ |= {*_ABSTRACT}
for _name in _PLACES:
    setattr(CommunicatorBase, _name, property(_undefined(_name)))
CommunicatorBase.register(Communicator)


def _averages_by_itself(comm: Any) -> bool:
    """Returns whether a program defines how this communicator averages gradients."""
    if not isinstance(comm, Communicator):
        return isinstance(comm, CommunicatorBase)
    means = ("multi_node_mean_grad", "allreduce_grad")
    return any(getattr(type(comm), name) is not getattr(Communicator, name) for name in means)


if TYPE_CHECKING:
    _Base = Optimizer
else:
    _Base = object  # the class of an optimizer is combined with _Averaging


class _Averaging(_Base):
    """Updates as in ChainerMN: the first update sends parameters, later ones average gradients."""

    _comm: Any
    _zero_fill = True
    _is_sent = False

    def setup(self, link: Any) -> Any:
        self._is_sent = False
        return super().setup(link)

    def update(self, lossfun: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> None:
        target = self.target
        if lossfun is not None:
            loss = lossfun(*args, **kwargs)
            target.cleargrads()
            loss.backward()
            del loss
        if not self._is_sent:
            self._is_sent = True
            self._comm.bcast_data(target)
            return
        self._comm.multi_node_mean_grad(target, self._zero_fill)
        super().update(None)


def create_multi_node_optimizer(
    actual_optimizer: GradientMethod,
    communicator: Communicator,
    double_buffering: bool = False,
    zero_fill: bool = True,
    **options: Any,
) -> Any:
    """See :func:`mpchain.distributed.create_multi_node_optimizer`.

    A communicator that defines its own averaging averages gradients with its
    ``multi_node_mean_grad``, and the first update only sends parameters, as in ChainerMN.
    """
    if not _averages_by_itself(communicator):
        return optimizers.create_multi_node_optimizer(
            actual_optimizer, communicator, double_buffering, zero_fill, **options
        )
    if double_buffering or options:
        raise ValueError(
            "create_multi_node_optimizer: double_buffering and options of mpchain need one of its "
            f"communicators, but {type(communicator).__name__} averages gradients by itself"
        )
    cls = type(actual_optimizer)
    own = {"rule": cls.rule, "_comm": communicator, "_zero_fill": zero_fill}
    actual_optimizer.__class__ = type(cls.__name__, (_Averaging, cls), own)
    return actual_optimizer


def create_multi_node_evaluator(actual_evaluator: Any, communicator: Communicator) -> Any:
    """See :func:`mpchain.distributed.create_multi_node_evaluator`.

    A program's own communicator averages the ranks' means with ``allreduce_obj``.
    """
    if isinstance(communicator, Communicator):
        return extensions.create_multi_node_evaluator(actual_evaluator, communicator)
    evaluate = actual_evaluator.evaluate

    def evaluate_on_all() -> dict[str, Any]:
        means = sorted(evaluate().items())
        return {k: communicator.allreduce_obj(v) / communicator.size for k, v in means}

    actual_evaluator.evaluate = evaluate_on_all
    return actual_evaluator


def share_of_few(
    function: str, n: int, comm: Communicator, force_equal_length: bool
) -> tuple[int, int]:
    """Returns the range (start, stop) of a rank's samples. If there are fewer samples than ranks,
    several ranks get the same sample, or some ranks get none."""
    if not force_equal_length:
        return partition(n, comm.rank, comm.size)
    begin = n * comm.rank // comm.size
    return begin, begin - (-n // comm.size)


def call_generic_evaluator(evaluator: Any, trainer: Trainer = None) -> Any:
    """Returns the aggregated result on the root, and None on other ranks. Like ChainerMN's
    evaluator, it reports nothing."""
    result = evaluator.evaluate()
    return result if evaluator.comm.rank == evaluator.root else None
