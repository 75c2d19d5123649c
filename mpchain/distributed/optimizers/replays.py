"""What replays of captured steps do in place of a multi-node optimizer's update."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpchain.distributed.gradients.buckets import GradientReducer
from mpchain.distributed.optimizers.draws import n_divided
from mpchain.recording import current
from mpchain.variable import Variable

if TYPE_CHECKING:
    from mpchain.distributed.optimizers.multi_node import MultiNodeOptimizer


class Replays:
    """The messages of an update, as a replay makes them: the same in the same order.

    So ranks that replay a step work together with ranks that run it as always.

    Args:
        optimizer: whose updates are replayed.

    Example:
        >>> from mpchain.distributed.optimizers.replays import Replays
        >>> optimizer = mpchain.distributed.create_multi_node_optimizer(optimizers.SGD(), comm)
        >>> Replays(optimizer).recorder([(2, None)], None) is None  # nobody records
        True
    """

    def __init__(self, optimizer: "MultiNodeOptimizer"):
        self._optimizer = optimizer

    def recorder(self, parts: Sequence[tuple[int | None, Any]], observations: Any) -> Any:
        """Returns the recorder of a step that is being recorded and can be replayed, or None."""
        if current.recorder is None:
            return None
        reason = self._why_not(parts, observations)
        if reason is not None:
            current.recorder.refuse(reason)
        return current.recorder if reason is None else None

    def _why_not(self, parts, observations):
        optimizer = self._optimizer
        if current.graph is not None:
            return "graphs of GPUs hold no messages between ranks yet"
        if len(parts) > 1 or optimizer._reducer.parts_per_batch or optimizer._n_accumulated:
            return "a multi-node optimizer processes the batch in parts"
        if type(optimizer._reducer) is not GradientReducer or not optimizer._exchanges:
            return "gradients are not exchanged in the step that they belong to"
        if optimizer._waiting or optimizer._joint_link is not None or parts[0][0] == 0:
            return "ranks exchange more than gradients"
        return None if observations is None else "MultiNodeUpdater combines what models report"

    def begin(self, n_own: int) -> None:
        """Begins a step, of ``n_own`` samples of this rank if the optimizer does not know them."""
        optimizer = self._optimizer
        n = optimizer._n_samples()
        optimizer._draws.count(n_own if n is None else n)
        n_total = n_divided(optimizer.communicator)
        optimizer._reducer.begin(n, n_total=n_total, losses_are_weighted=True)

    def weigh(self) -> float:
        """Returns the factor on the loss, and clears the gradients."""
        optimizer = self._optimizer
        optimizer.target.cleargrads()
        scale = optimizer.actual_optimizer.loss_scale
        weight = optimizer._reducer.weight(optimizer._n_samples())
        return weight * (1 if scale is None else scale)

    def ready(self, param: Variable) -> None:
        """Passes a final gradient on."""
        self._optimizer._reducer.ready(param)
