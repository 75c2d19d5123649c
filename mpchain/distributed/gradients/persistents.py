"""Persistent values of models, on several ranks."""

import weakref
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.backends.dtypes import is_floating
from mpchain.distributed.communicators import Communicator
from mpchain.link import Link
from mpchain.parameter_tree import is_array


class Persistent:
    """A persistent value of a link.

    Args:
        link: the link.
        name: the attribute that holds the value.

    Example:
        >>> Persistent(L.BatchNormalization(2), "avg_mean").value
        array([0., 0.], dtype=float32)
    """

    def __init__(self, link: Link, name: str):
        self.link, self.name = link, name

    @property
    def value(self) -> Any:
        """The value: an array, number, string or None."""
        return self.link.__dict__[self.name]

    @value.setter
    def value(self, value: object) -> None:
        self.link.__dict__[self.name] = value


def named_persistents(model: Link) -> dict[str, Persistent]:
    """Returns a dict from path to each persistent value of a model.

    Example:
        >>> [*named_persistents(mpchain.Sequential(L.BatchNormalization(2)))]
        ['/0/N', '/0/avg_mean', '/0/avg_var']
    """
    found, seen = {}, set()
    for path, link in model.namedlinks():
        if id(link) not in seen:  # a shared link has several paths, but is listed once
            seen.add(id(link))
            for name in sorted(link._persistents):
                found[f"{path.rstrip('/')}/{name}"] = Persistent(link, name)
    return found


def remember(comm: Communicator, model: Link) -> None:
    """Records that a model is trained on these ranks; all ranks must call this in the same order.

    Example:
        >>> model = L.Linear(2, 2)
        >>> remember(comm, model)
        >>> model in remembered(comm).values()
        True
    """
    models = vars(comm).setdefault("_models", [])
    if all(reference() is not model for reference in models):
        models.append(weakref.ref(model))


def remembered(comm: Communicator) -> dict[int, Link]:
    """Returns a dict of the models that are trained on these ranks, keyed by number, in the order
    of :func:`remember`.

    Example:
        >>> remembered(mpchain.create_communicator())
        {}
    """
    models = ((i, reference()) for i, reference in enumerate(vars(comm).get("_models", ())))
    return {i: model for i, model in models if model is not None}


def are_initialized(comm: Communicator) -> bool:
    """Returns whether all persistent values of the models are initialized. A value of None gets its
    value in a forward pass.

    Example:
        >>> are_initialized(mpchain.create_communicator())
        True
    """
    models = remembered(comm).values()
    return all(p.value is not None for model in models for p in named_persistents(model).values())


class MicroShardPersistents:
    """The persistent values that forward passes update in a step, the same on any number of ranks.

    Each micro-shard starts from the values at the start of the step. The new value of a
    floating-point number or array is the mean of its values after each micro-shard, weighted by the
    number of samples: running statistics are updated once, with the step's mean statistics. Any
    other value must be equal after all micro-shards: a counter counts the step once. Micro-shards
    without samples do not count. The values of all models that are trained on these ranks are
    included, since one model's loss function may call another model (a generator and its critic).

    Args:
        comm: a reproducible communicator.

    Example:
        >>> ranks = mpchain.create_communicator(reproducible=True, micro_shards=2)
        >>> model = L.BatchNormalization(1)
        >>> remember(ranks, model)
        >>> persistents = MicroShardPersistents(ranks)
        >>> for mean in (1.0, 3.0):
        ...     model.avg_mean[...] = mean
        ...     persistents.add(4)
        >>> persistents.finish(); model.avg_mean
        array([2.], dtype=float32)
    """

    def __init__(self, comm: Communicator):
        self._comm = comm
        self._values, seen = {}, set()
        for i, model in remembered(comm).items():
            for path, persistent in named_persistents(model).items():
                place = id(persistent.link), persistent.name
                if place not in seen:
                    seen.add(place)
                    self._values[i, path] = persistent
        self._start = {key: (p.value, _copy(p.value)) for key, p in self._values.items()}
        self._own = []  # for each micro-shard, its number of samples and the values that it changed

    def add(self, n: int) -> None:
        """Records the values after the next micro-shard, of ``n`` samples, and resets them."""
        changed = {}
        for key, persistent in self._values.items():
            value, (original, copy) = persistent.value, self._start[key]
            if not _are_equal(value, copy):
                changed[key] = cuda.to_cpu(_copy(value))
                persistent.value = original
                if is_array(original):
                    backend.copyto(original, copy)
        if n > 0:
            self._own.append((n, changed))

    def finish(self) -> None:
        """Sets the values; collective.

        Raises:
            ValueError: a value that is not a floating-point number or array differs between
                micro-shards, or shapes differ.
        """
        shards = [shard for part in self._comm.allgather_obj(self._own) for shard in part]
        for key in sorted({key for _, changed in shards for key in changed}):
            persistent, start = self._values[key], cuda.to_cpu(self._start[key][1])
            results = [changed.get(key, start) for _, changed in shards]
            value = _combined(key[1], [n for n, _ in shards], results)
            held = persistent.value
            if is_array(held) and is_array(value) and held.shape == value.shape:
                backend.copyto(held, value.astype(held.dtype, copy=False))
            else:
                persistent.value = persistent.link.device.send(value) if is_array(value) else value


def _copy(value):
    return value.copy() if is_array(value) else value


def _are_equal(x, y):
    if not (is_array(x) and is_array(y)):
        return type(x) is type(y) and x == y
    return x.dtype == y.dtype and x.shape == y.shape and bool((x == y).all())


def _combined(name, weights, values):
    """Returns the weighted mean of values; if all values are equal, returns exactly that value."""
    first = values[0]
    arrays = [np.asarray(value) for value in values]
    if len({(array.shape, array.dtype) for array in arrays}) > 1 or not is_floating(
        arrays[0].dtype
    ):
        if all(_are_equal(value, first) for value in values):
            return first
        raise ValueError(
            f"MultiNodeOptimizer.update: persistent value {name} is not the same after each of the "
            f"{len(values)} micro-shards, and has no mean, since it is not a floating-point number "
            f"or array of one shape: {first!r:.40}, ..., {values[-1]!r:.40}. Update it outside of "
            "the loss function"
        )
    stacked = np.stack(arrays)
    dtype = np.promote_types(stacked.dtype, np.float64)
    weights = np.array(weights, dtype).reshape(-1, *(1,) * (stacked.ndim - 1))
    mean = (weights * stacked).sum(0) / weights.sum()
    result = np.where((stacked == stacked[0]).all(0), stacked[0], mean).astype(stacked.dtype)
    return result if is_array(first) else type(first)(result)
