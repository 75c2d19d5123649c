"""Finds samples that the ranks repeat or miss, or whose values differ between the ranks."""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain.prove import batches, causes
from mpchain.prove.records import Samples

Found = tuple[str, str, str] | None  # what differs, a description, and the likely cause


def of_batch(
    held: Sequence[dict[str, Any]],
    own: Sequence[dict[str, Any]],
    owners: Sequence[int],
    is_divided: bool,
) -> Found:
    """Compares the samples of a batch.

    Args:
        held: the ranks' micro-batches; see :func:`mpchain.prove.batches.found`.
        own: the batches of one process, before they are replaced.
        owners: for each micro-batch of ``held``, its rank.
        is_divided: whether each rank has its own part of the data, so that the samples of one
            process may differ.

    Example:
        >>> of_batch([{"x": np.ones(1)}, {"x": np.ones(1)}], [{"x": np.arange(2.0)}], [0, 1], False)
        ('the batch', 'sample 1 (of rank 1) is sample 0 (of rank 0) again: 1 of 2 samples ...', ...)
    """
    sizes: list[Any] = list(map(batches.length, held))
    own_sizes: list[Any] = list(map(batches.length, own))
    if not sizes or None in sizes or None in own_sizes:
        return None
    whole, n = batches.joined(held, sizes)
    alone, n_own = batches.joined(own, own_sizes)
    texts, own_texts = batches.samples(whole, n), batches.samples(alone, n_own)
    if n is None or n_own is None or not texts or sorted(texts) == sorted(own_texts):
        return None
    where, ranks = "the batch", np.repeat(owners, sizes)
    n_repeated = len(texts) - len({*texts})
    if n_repeated and len({*own_texts}) == len(own_texts):
        i, k = _first_repeated(texts)
        return (
            where,
            f"sample {i} (of rank {ranks[i]}) is sample {k} (of rank {ranks[k]}) again: "
            f"{n_repeated} of {len(texts)} samples are repeated",
            causes.PADDED if n_repeated < n // 2 else causes.REPEATED,
        )
    missing = [i for i, text in enumerate(own_texts) if text not in texts]
    if n < n_own and len(missing) == n_own - n:
        text = (
            f"sample {missing[0]} of one process is on no rank: the ranks miss {n_own - n} of "
            f"{n_own} samples"
        )
        return where, text, causes.MISSED
    if n != n_own or texts == own_texts:
        return None
    path, n_same = batches.changed_part(whole, alone, n), sum(map(bytes.__eq__, texts, own_texts))
    if path or (n_same >= min(sizes) and not is_divided):
        i = next(i for i in range(n) if texts[i] != own_texts[i])
        by = f" in {path}" if path else ""
        text = f"sample {i} (of rank {ranks[i]}) differs from sample {i} of one process{by}"
        return where, text, causes.DATA_OF_RANK if path else causes.SAMPLES
    return None


def of_iterator(held: Sequence[Samples | None], own: Samples, are_batches_equal: bool) -> Found:
    """Compares the data that the iterators read in an epoch.

    Args:
        held: the dataset of the ranks' iterator; None if a rank has none.
        own: the dataset of the iterator in one process.
        are_batches_equal: whether the iterators have given the same batches so far.

    Example:
        >>> part, whole = Samples("SerialIterator", 3, False), Samples("SerialIterator", 7, False)
        >>> of_iterator([part, part], whole, False)[:2]
        ('the data of SerialIterator', '3, 3 samples on the ranks, 7 in one process: an epoch ...')
    """
    known = [each for each in held if each is not None and each.n is not None]
    if own.n is None or len(known) < len(held):
        return None
    where = f"the data of {own.kind}"
    if own.is_random:
        return where, "sample 0 differs each time that it is read", causes.DRAWN_DATA
    if own.is_shared or any(each.is_shared for each in known):
        for rank, each in enumerate(known):
            if None not in (each.texts, own.texts) and each.texts != own.texts:
                i = next((i for i, (x, y) in enumerate(zip(each.texts, own.texts)) if x != y), 0)
                text = f"sample {i} of rank {rank} differs from sample {i} of one process"
                return where, text, causes.SHARED_DATA
        return None
    if are_batches_equal:
        return None
    total = sum(each.n or 0 for each in known)
    if total != own.n:
        what, cause = "misses", causes.MISSED
        if total > own.n:
            is_all = all(each.n == own.n for each in known)
            what, cause = "repeats", causes.REPEATED if is_all else causes.PADDED
        counts = ", ".join(str(each.n) for each in known)
        text = f"{counts} samples on the ranks, {own.n} in one process: an epoch {what} "
        return where, f"{text}{abs(total - own.n)}", cause
    return _in_common(where, known, own)


def _in_common(where, known, own):
    """Compares the ranks' samples with the samples of one process, if all of them are known."""
    if own.texts is None or any(each.texts is None for each in known):
        return None
    ours = collections.Counter(text for each in known for text in each.texts)
    theirs = collections.Counter(own.texts)
    n_missed = (theirs - ours).total()
    n_unknown = sum(n for text, n in ours.items() if text not in theirs)
    if not n_missed:
        return None
    missed = next(i for i, text in enumerate(own.texts) if ours[text] < theirs[text])
    text = f"sample {missed} of one process is on no rank: an epoch misses {n_missed} of {own.n}"
    if n_unknown == n_missed:
        return where, f"{text}, and has {n_unknown} samples instead", causes.DATA_OF_RANK
    return where, f"{text}, and repeats other samples", causes.REPEATED


def _first_repeated(texts):
    first = {}
    for i, text in enumerate(texts):
        if first.setdefault(text, i) != i:
            return i, first[text]
    raise AssertionError("no sample is repeated")
