"""Likely causes of a difference, in plain words."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain.prove.comparison import Suspect, best, gap
from mpchain.prove.records import Pass

OTHER_UPDATES = (
    "rank-dependent code: ranks and one process update other optimizers, or at other lines, such "
    "as below an 'if' on comm.rank"
)
OTHER_FUNCTIONS = "rank-dependent code: ranks and one process call other functions"
HYPERPARAMETER = (
    "it depends on the rank or on the number of ranks; since gradients are means over all samples, "
    "it must not"
)
MISSED = (
    "samples that are missed: they are dropped on several ranks, but not in one process; ranks may "
    "have unequal numbers of samples, so divide batches by create_sharded_iterator or comm.batch"
)
PADDED = (
    "padding by repeated samples: scatter_dataset(..., force_equal_length=False), or "
    "create_sharded_iterator, take each sample once"
)
DRAWN = (
    "draws outside of mpchain.random: {names} drew numbers, perhaps in this function; draw by "
    "mpchain.random.source. Otherwise the result for a sample depends on the other ones of a rank"
)
DATA_OF_RANK = (
    "data that differ: the same samples have other values on some ranks, such as by a "
    "normalization that depends on the rank's own data"
)
LEFT_OUT = (
    "samples that are missed: a loop over parts of a batch that some ranks leave early, or "
    "rank-dependent code"
)
DRAWN_DATA = (
    "data that differ: the dataset draws other numbers in each reading and on each rank; those of "
    "datasets.AugmentedDataset depend on the sample and the epoch only"
)
UNSEEDED = (
    "nothing seeds what it draws (such as np.random.default_rng() or os.urandom), or it depends on "
    "the time: seed it, or draw by mpchain.random.source"
)
REPEATED = (
    "a sampler that repeats samples: each rank draws from the whole data; divide batches by "
    "create_sharded_iterator or comm.batch, or data by scatter_dataset"
)
OTHER_STATE = "rank-dependent code builds other models"
DIVIDED = (
    "the model is divided among the ranks: what they compute together is not what one of them "
    "computes alone, and cannot be compared by parameters"
)
RESULT = (
    "the mean of the ranks' values is not the value of all samples together, or ranks evaluate "
    "other samples"
)
BATCH = (
    "statistics of a batch: the result for a sample depends on the other samples that are on the "
    "same rank; use MultiNodeBatchNormalization, or mpchain.batch_mean"
)
COUNT = (
    "a mean over counts that differ between ranks, or another function of a rank's own sums: "
    "divide mpchain.batch_sum by mpchain.batch_count, or use mpchain.batch_mean"
)
WEIGHTS = (
    "ranks have unequal numbers of samples, but equal weights: set optimizer.n_samples, or divide "
    "the batch by comm.batch"
)
NUMBER = (
    "a number that differs between ranks: it depends on the rank, or is computed from the rank's "
    "own samples"
)
SIZE = "a number that depends on the number of ranks"
SHAPES = (
    "shapes that depend on the rank's own samples, such as of data that are cut or padded to the "
    "length of one of them, or other samples"
)
MAXIMUM = (
    "a maximum or minimum of a rank's samples, whose mean over ranks is not that of all samples"
)
SHARED_DATA = (
    "data that differ: ranks divide the batches of one process, so that all of them must have the "
    "same data in the same order"
)
SAMPLES = (
    "a sampler that repeats or misses samples, or data that differ: some ranks have other samples "
    "than one process, others the same; divide batches by create_sharded_iterator or comm.batch"
)
SUM = "a sum over samples: each rank must return the mean over its own samples"
DRAW = (
    "draws outside of mpchain.random: the function's input does not come from the batch, and "
    "{names} drew numbers; draw by mpchain.random.source, which gives each sample its own"
)
DATA = (
    "data that differ, a state kept by a rank, or a statistic of its own samples: the function "
    "gets an array that is neither of the batch nor of a parameter, and differs between "
    "the ranks and one process"
)
STATE = "a state kept by one rank: what it is computed from is no sample, and differs"
NOT_AVERAGED = "missing averaging: ranks have other gradients than each other"
SCALE = "a wrong scale: gradients of the ranks are {factor} times those of one process"
GRADIENT = (
    "gradients are changed between the loss and their average, such as by clipping or "
    "compression, or the loss of the whole batch is no mean of the ranks' losses"
)
HOOK = (
    "a hook that draws, acts on some ranks only, or depends on their number, or other code around "
    "the update; gradients were the same"
)
START = (
    "models that differ at the start, or code between the updates that depends on the rank, or on "
    "the number of ranks"
)
STATISTICS = "stale or local statistics: each rank keeps its own running values"


def of_function(suspect: Suspect, ranks: Sequence[Pass], one: Sequence[Pass]) -> str:
    """Returns the likely cause of a function's difference.

    Args:
        suspect: the function.
        ranks, one: the passes of the ranks and of one process.
    """
    if suspect.kind == "other functions" or suspect.one is None:
        return OTHER_FUNCTIONS
    mine = [ranks[i] for i in suspect.passes]
    found = _different_leaf(mine, one, suspect.ranks, suspect.one)
    if found is not None:
        leaf, are_alike = found
        if names := _drawn(ranks, one):
            return DRAW.format(names=names)
        if np.ndim(leaf):
            return DATA
        if are_alike:
            return SIZE
        return NUMBER if np.ndim(suspect.one.outputs[0]) else COUNT
    if suspect.gap is None and np.ndim(suspect.one.outputs[0]):
        return SHAPES
    if suspect.kind.startswith(("rows", "axis")) or not suspect.one.parents:
        if names := _drawn(ranks, one):
            return DRAWN.format(names=names)
        return BATCH if suspect.one.parents else STATE
    return COUNT


def _drawn(ranks, one):
    """Returns the names of the random generators that were used."""
    return " and ".join(sorted({name for p in [*ranks, *one] for name in p.draws}))


def _different_leaf(ranks, one, applications, own):
    """Returns an input of a function (an array or number) that differs, and whether all ranks get
    the same input; None if no input differs."""
    for i, leaf in enumerate(own.leaves):
        held = [a.leaves[i] if i < len(a.leaves) else None for a in applications]
        if isinstance(leaf, str) or any(x is None or isinstance(x, str) for x in held):
            continue
        kind, difference = best([(p.n, x) for p, x in zip(ranks, held)], [(one[0].n, leaf)])
        is_same = difference is not None and not difference.is_large
        if not is_same or kind in ("mean", "sum", "maximum", "minimum"):
            are_alike = len(held) > 1 and not any(gap(held[0], x).is_large for x in held[1:])
            return leaf, are_alike and not (is_same and kind == "sum")
    return None


def of_value(ranks: Sequence[tuple[Any, Any]], one: Sequence[tuple[Any, Any]]) -> str:
    """Returns the likely cause of a difference of a loss or a reported value.

    >>> of_value([(1, 2.0), (1, 3.0)], [(2, 5.0)]) == SUM
    True
    """
    kind, difference = best(ranks, one)
    if difference is not None and not difference.is_large and kind == "sum":
        return SUM
    return MAXIMUM if kind in ("maximum", "minimum") else COUNT


def of_gradient(ranks: Sequence[Any], own: Any, rank: int) -> str:
    """Returns the likely cause of a difference of averaged gradients.

    >>> of_gradient([np.ones(1), np.ones(1)], np.full(1, 2.0), 0)
    'a wrong scale: gradients of the ranks are 0.5 times those of one process'
    """
    known = [g for g in ranks if g is not None]
    if len(known) < len(ranks) or any(gap(known[0], g).is_large for g in known[1:]):
        return NOT_AVERAGED
    if own is not None and np.any(own):
        factor = float(np.vdot(own, known[0]) / np.vdot(own, own))
        if abs(factor - 1) > 0.01 and not gap(known[0], own * factor).is_large:
            return SCALE.format(factor=f"{factor:.4g}")
    return GRADIENT


def of_state(kind: str, ranks: Sequence[Any], own: Any, when: str) -> str:
    """Returns the likely cause of a difference of a parameter or persistent value."""
    if any(np.shape(x) != np.shape(own) for x in ranks):
        return DIVIDED
    if kind == "persistents":
        return STATISTICS
    return HOOK if when == "after" else START
