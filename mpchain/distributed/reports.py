"""Means of reported values over the samples of all ranks."""

from mpchain.reporter import DictSummary


def means_over_ranks(comm, summary):
    """Combines what the ranks have summed up.

    Args:
        comm (Communicator): the ranks.
        summary (DictSummary): this rank's values with their weights; names may differ by rank.

    Returns:
        dict: the weighted mean over all ranks by name, the same on all ranks.
    """
    total = DictSummary()
    for part in comm.allgather_obj(summary):
        total.merge(part)
    return total.compute_mean()
