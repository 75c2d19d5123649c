"""Sentences for a user that state the likely cause of a difference and its remedy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain.prove.comparison import Suspect, best, gap
from mpchain.prove.records import Pass

OTHER_UPDATES = (
    "rank-dependent code updates other optimizers on the ranks than in one process, or updates "
    "them at other lines, such as below an 'if' on comm.rank; run the same updates on all ranks"
)
OTHER_FUNCTIONS = (
    "rank-dependent code calls other functions on the ranks than in one process; call the same "
    "functions on all ranks"
)
HYPERPARAMETER = (
    "the hyperparameter depends on the rank or on the number of ranks; gradients are means over "
    "all samples, so set the same value on any number of ranks"
)
MISSED = (
    "the program misses samples on several ranks, but not in one process; ranks may have unequal "
    "numbers of samples, so divide batches by create_sharded_iterator or comm.batch"
)
PADDED = (
    "padding by repeated samples makes the ranks' numbers of samples equal; pass "
    "force_equal_length=False to scatter_dataset, or use create_sharded_iterator"
)
DRAWN = (
    "the program draws outside of mpchain.random: {names} drew numbers, perhaps in this function; "
    "draw by mpchain.random.source. If this function draws no numbers, its result for a sample "
    "depends on the other samples of a rank"
)
DATA_OF_RANK = (
    "the program reads data that differ: the same samples have other values on some ranks, such as "
    "after a normalization that depends on the rank's own data"
)
LEFT_OUT = (
    "some ranks miss samples, because they leave a loop over micro-batches early, or because of "
    "rank-dependent code"
)
DRAWN_DATA = (
    "the program reads data that differ: the dataset draws other numbers in each reading and on "
    "each rank; use datasets.AugmentedDataset, whose random numbers depend on the sample and the "
    "epoch only"
)
UNSEEDED = (
    "this function draws from a generator that nothing seeds (such as np.random.default_rng() or "
    "os.urandom), or depends on the time: seed the generator, or draw by mpchain.random.source"
)
REPEATED = (
    "each rank has a sampler that repeats samples of other ranks, because it draws from all data; "
    "divide batches by create_sharded_iterator or comm.batch, or data by scatter_dataset"
)
OTHER_STATE = "rank-dependent code builds other models"
DIVIDED = (
    "the model is divided among the ranks, so no rank has the parameters of the whole model; a "
    "proof can only compare models that are whole on each rank"
)
RESULT = (
    "the mean of the ranks' values is not the value for all samples together, or the ranks "
    "evaluate other samples than one process"
)
BATCH = (
    "the function computes statistics of a batch: its result for a sample depends on the other "
    "samples on the same rank; use MultiNodeBatchNormalization, or mpchain.batch_mean"
)
COUNT = (
    "the value is a mean over counts that differ between ranks, or another function of a rank's "
    "own sums: divide mpchain.batch_sum by mpchain.batch_count, or use mpchain.batch_mean"
)
WEIGHTS = (
    "the ranks have unequal numbers of samples, but equal weights: set optimizer.n_samples, or "
    "divide the batch by comm.batch"
)
NUMBER = (
    "the function gets a number that differs between ranks, because the number depends on the rank "
    "or is computed from the rank's own samples"
)
SIZE = "the function gets a number that depends on the number of ranks"
SHAPES = (
    "the array's shape depends on the rank's own samples, for example because data are padded to "
    "the longest sample, or the ranks have other samples than one process"
)
MAXIMUM = (
    "the value is a maximum or minimum over a rank's samples, and the mean of these over the ranks "
    "is not the maximum or minimum over all samples"
)
SHARED_DATA = (
    "the program reads data that differ: the ranks divide the batches of one process among them, "
    "so all ranks must have the same data in the same order"
)
SAMPLES = (
    "the program has a sampler that repeats or misses samples, or data that differ: only some "
    "ranks have the samples of one process; divide batches by create_sharded_iterator or "
    "comm.batch"
)
SUM = "the value is a sum over samples: let each rank return the mean over its own samples"
DRAW = (
    "the program draws outside of mpchain.random: the function's input does not come from the "
    "batch, and {names} drew numbers; draw by mpchain.random.source, whose numbers depend on the "
    "sample"
)
DATA = (
    "the function gets an array that differs between the ranks and one process, and that comes "
    "neither from the batch nor from a parameter: data that differ, a state that a rank keeps, or "
    "a statistic of the rank's own samples"
)
STATE = "the function gets a state that only one rank keeps, or another array that is not a sample"
NOT_AVERAGED = "the gradients are not averaged: they differ between the ranks"
SCALE = "the scale is wrong: the ranks' gradients are {factor} times the gradients of one process"
GRADIENT = (
    "code such as clipping or compression changes the gradients before they are averaged, or the "
    "loss of the whole batch is not the mean of the ranks' losses"
)
HOOK = (
    "the gradients are the same, so the cause is a hook that draws random numbers, acts on some "
    "ranks only or depends on the number of ranks, or other code around the update"
)
START = (
    "the models differ at the start, or code between the updates depends on the rank or on the "
    "number of ranks"
)
STATISTICS = "each rank keeps its own running values: stale or local statistics"


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
    """Returns the names of the global random generators that the passes used, joined by "and"."""
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
    "the scale is wrong: the ranks' gradients are 0.5 times the gradients of one process"
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
