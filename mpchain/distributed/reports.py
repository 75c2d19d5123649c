"""Means of reported values over the samples of all ranks."""

import json

from mpchain.serializers import DictionarySerializer


def means_over_ranks(comm, summary):
    """Combines what the ranks have summed up.

    Args:
        comm (Communicator): the ranks.
        summary (DictSummary): this rank's values with their weights; names may differ by rank.

    Returns:
        dict: the weighted mean over all ranks by name, the same on all ranks.
    """
    sums = {}
    for part in comm.allgather_obj(_sums(summary)):
        for name, (weight, value) in part.items():
            n, x = sums.get(name, (0, 0))
            sums[name] = n + weight, x + value
    return {name: x / n for name, (n, x) in sums.items() if n > 0}


def _sums(summary):
    """For each name, the sum of weights and the weighted sum of values."""
    saved = DictionarySerializer()
    summary.serialize(saved)
    names = json.loads(str(saved.target["_names"]))
    return {
        name: tuple(float(saved.target[f"_summaries/{i}/{key}"]) for key in ("_n", "_x"))
        for i, name in enumerate(names)
    }
