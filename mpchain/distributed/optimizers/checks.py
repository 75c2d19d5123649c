"""Checks of models and batches that several ranks, or parts of a batch, must not have."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.gradients.control import Control
from mpchain.link import Link

if TYPE_CHECKING:
    from mpchain.distributed.optimizers.multi_node import MultiNodeOptimizer


def joint_link(comm: Communicator, model: Link) -> str | None:
    """Returns the name of a link that computes with all ranks together; None if there is none.

    Raises:
        ValueError: a link cannot work with these ranks.

    Example:
        >>> joint_link(comm, L.Linear(3, 2)) is None
        True
    """
    found = None
    for name, link in model.namedlinks():
        if getattr(link, "needs_all_ranks", False):
            found = found or name
            if comm.micro_shards:
                raise ValueError(
                    f"MultiNodeOptimizer.setup: {name} computes with all ranks together, so "
                    "that results depend on their number, which a reproducible communicator "
                    "must not allow: normalize each micro-shard by itself "
                    "(BatchNormalization), or by layer or group"
                )
        if getattr(link, "divided_among", None) is comm:
            raise ValueError(
                f"MultiNodeOptimizer.setup: the parameters of {name} are divided among these "
                "ranks, and cannot be made the same on all of them: pass the communicator of "
                "the ranks that have the same parts, or use the wrapped optimizer alone"
            )
    return found


def check_parts(optimizer: "MultiNodeOptimizer", counts: Sequence[int | None]) -> None:
    """Checks the numbers of samples of this rank's parts, and of the other ranks' if a link
    computes with all ranks together: all of them then raise ValueError.

    Args:
        optimizer: processes the parts.
        counts: the number of samples of each.
    """
    n_parts, exchanges = optimizer._reducer.parts_per_batch, optimizer._exchanges
    if n_parts is not None and (len(counts) != n_parts or not exchanges):
        raise RuntimeError(
            "MultiNodeOptimizer.update_in_parts: a reproducible communicator needs "
            f"{n_parts} parts on each rank, its micro-shards, but got "
            f"{len(counts) if exchanges else 'no_sync'}: let update cut the batch, or "
            "use MultiNodeUpdater"
        )
    if optimizer._joint_link is None:
        return
    n_own = sum(n != 0 for n in counts)
    are_equal, n_idle = Control.of(optimizer.communicator).compare(n_own)
    if are_equal and not (n_idle and exchanges):
        return
    held = optimizer.communicator.allgather_obj(n_own)
    where = f"MultiNodeOptimizer.update: {optimizer._joint_link} computes with all ranks together"
    if 0 in held and exchanges:
        raise ValueError(
            f"{where}, but {held.count(0)} of {len(held)} have no samples: use larger batches "
            "or fewer ranks"
        )
    raise ValueError(
        f"{where}, but they have {held} parts of the batch: accumulate "
        "over fewer parts, or use larger batches"
    )
