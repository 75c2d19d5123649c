"""Making parameters and persistent values the same on all ranks."""

import hashlib
from collections.abc import Mapping

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.configuration import using_config
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import summed_dtype
from mpchain.distributed.gradients.control import COPY_PERSISTENTS, Control
from mpchain.distributed.gradients.persistents import Persistent, named_persistents, remembered
from mpchain.parameter_tree import is_array
from mpchain.typing import Array
from mpchain.utils.flat_layout import layouts
from mpchain.variable import Parameter

BUCKET_BYTES = 16 * 1024 * 1024
"""Small arrays are sent together, in messages of about this size."""


def replicate(
    comm: Communicator,
    params: Mapping[str, Parameter],
    persistents: Mapping[str, Persistent],
    root: int = 0,
) -> None:
    """Copies parameters and persistent values from one rank to all ranks.

    A value that the root lacks (a parameter that is not initialized, a persistent value that is
    None) comes from the lowest rank that has it. A parameter that is not initialized on some rank
    is initialized there. A value that no rank has stays unchanged.

    Args:
        comm: the communicator of the ranks.
        params: dict from name to parameter, with the same names on all ranks.
        persistents: dict from path to persistent value, with the same paths on all ranks.
        root: the rank whose values are copied.

    Raises:
        ValueError: names, shapes or dtypes differ between ranks.

    Example:
        >>> replicate(comm, dict(L.Linear(2, 2).namedparams()), {})
    """
    kinds = {name: _kind(param.array) for name, param in params.items()}
    kinds |= {name: _kind(persistent.value) for name, persistent in persistents.items()}
    tables = _tables_of_all(comm, kinds)
    _check_names(tables)
    by_root, ranks = {}, [root, *range(comm.size)]
    for name in sorted(kinds):
        held = [table[name] for table in tables]
        source = next((rank for rank in ranks if held[rank] is not None), None)
        if source is None:
            continue
        _check_alike("parameter" if name in params else "persistent value", name, held)
        array = (_room_in_param if name in params else _room_in_persistent)(
            (params if name in params else persistents)[name], held[source]
        )
        if array is not None:
            by_root.setdefault(source, []).append(array)
    for source, arrays in sorted(by_root.items()):
        _broadcast(comm, arrays, source)


class SharedPersistents:
    """Keeps persistent values up to date on ranks that had no samples in a step.

    Forward passes may change persistent values, such as the vector of spectral normalization, so a
    rank that ran fewer passes than another rank lacks changes. That rank asks for the changes with
    the step's message; then all ranks copy the values of the first rank that ran the most passes.
    Running statistics (:attr:`mpchain.Link.running_statistics`) are not copied, because they
    describe each rank's own samples.

    Args:
        comm: the communicator of the ranks.

    Attributes:
        n_passes: the number of forward passes of this rank in the step so far.

    Example:
        >>> persistents = SharedPersistents(comm)
        >>> persistents.count(n_passes=1, n_parts=1)
        >>> persistents.finish()
    """

    def __init__(self, comm: Communicator):
        self._comm, self.n_passes, self._lacks = comm, 0, False

    def count(self, n_passes: int, n_parts: int) -> None:
        """Adds the forward passes of an update, whose batch has ``n_parts`` parts."""
        self.n_passes += n_passes
        if n_passes < n_parts:
            self._lacks = True
        if self._lacks and self._comm.size > 1 and self._changing():
            Control.of(self._comm).ask(COPY_PERSISTENTS)

    def finish(self) -> None:
        """Ends a step, after its message was received; collective."""
        comm, n_passes = self._comm, self.n_passes
        if comm.size > 1 and Control.of(comm).take(COPY_PERSISTENTS):
            own = self._changing()
            self.n_passes, self._lacks = 0, False
            of_ranks, names = zip(*comm.allgather_obj((n_passes, set(own))), strict=True)
            if min(of_ranks) < max(of_ranks):
                # Some ranks may already have freed models that the program dropped.
                held = {name: own[name] for name in set.intersection(*names)}
                replicate(comm, {}, held, of_ranks.index(max(of_ranks)))

    def _changing(self):
        """Returns the persistent values of all models that forward passes may change; a loss
        function may call several models."""
        return {
            f"{i}{path}": persistent
            for i, model in remembered(self._comm).items()
            for path, persistent in named_persistents(model).items()
            if persistent.name not in persistent.link.running_statistics
        }


def are_alike(comm: Communicator, params: Mapping[str, Parameter]) -> bool:
    """Returns whether parameters, given by name, have the same values on all ranks; collective.

    Example:
        >>> are_alike(comm, dict(L.Linear(2, 2).namedparams()))
        True
    """
    return len(set(comm.allgather_obj(digest({n: p.array for n, p in params.items()})))) == 1


def digest(arrays: Mapping[str, Array | None]) -> bytes:
    """Returns a checksum of arrays, any of which may be None, and their names.

    >>> digest({"/W": None}) == digest({"/W": np.zeros(2)})
    False
    """
    checksum = hashlib.blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        checksum.update(f"{name} {array is not None}".encode())
        if array is not None:
            array = np.ascontiguousarray(cuda.to_cpu(array))
            checksum.update(array.reshape(-1).view(np.uint8))
    return checksum.digest()


def _tables_of_all(comm, table):
    """Returns a list of all ranks' tables; sends only their hashes if all tables are equal."""
    digest = hashlib.blake2b(repr(sorted(table.items())).encode(), digest_size=16).digest()
    are_equal = len(set(comm.allgather_obj(digest))) == 1
    return [table] * comm.size if are_equal else comm.allgather_obj(table)


def _kind(value):
    """Returns the data that ranks compare: an array's shape and dtype, or another value itself."""
    if value is None:
        return None
    return ("array", value.shape, str(value.dtype)) if is_array(value) else ("value", value)


def _room_in_param(param, kind):
    """Returns the parameter's array, which the caller will overwrite; initializes it if
    necessary."""
    if not param.is_initialized:
        # The drawn values will be overwritten, so drawing them must not change the random state.
        with using_config("rng", np.random.RandomState(0)):
            param.initialize(kind[1])
    return param.array


def _room_in_persistent(persistent, kind):
    """Sets a value that is not an array; returns the array of any other value, for the caller to
    overwrite."""
    if kind[0] == "value":
        persistent.value = kind[1]
        return None
    if persistent.value is None:
        device = persistent.link.device
        with device.create_context():
            persistent.value = device.xp.empty(*kind[1:])
    return persistent.value


def _broadcast(comm, arrays, root):
    """Overwrites arrays with the root's arrays; all messages are sent at the same time."""
    requests, small = [], {}
    for i, array in enumerate(arrays):
        if (
            array.nbytes >= BUCKET_BYTES // 16
            and summed_dtype(array.dtype)
            and array.flags.c_contiguous
        ):
            requests.append((comm.ibcast(array, root), None))
        elif array.size > 0:
            small.setdefault(backend.get_array_module(array), {})[i] = array
    for xp, group in small.items():
        for layout in layouts(group.items(), BUCKET_BYTES):
            requests.append(_send_together(comm, xp, layout, group, root))
    for request, take in requests:
        request.Wait()
        if take is not None and comm.rank != root:
            take()


def _send_together(comm, xp, layout, arrays, root):
    """Begins to broadcast arrays as one message; returns the request and an unpacking function."""
    n_bytes = layout.size * layout.dtype.itemsize
    message = xp.empty(-(-n_bytes // 4), np.int32)
    flat = message.view(np.uint8)[:n_bytes].view(layout.dtype)

    def take():
        for i, view in layout.views(flat).items():
            arrays[i][...] = view

    if comm.rank == root:
        layout.fill(flat, arrays)
    return comm.ibcast(message, root), take


def _check_names(tables):
    for rank, table in enumerate(tables):
        unlike = set(tables[0]) ^ set(table)
        if unlike:
            name = min(unlike)
            has, lacks = (0, rank) if name in tables[0] else (rank, 0)
            raise ValueError(
                "the model must have the same parameters and persistent values on all ranks, "
                f"but rank {has} has {name} and rank {lacks} does not"
            )


def _check_alike(what, name, held):
    """Raises ValueError if shapes or dtypes differ, or if some ranks have an array and others
    another value; None is no value."""
    kinds = [None if kind is None else kind if kind[0] == "array" else "a value" for kind in held]
    if len({kind for kind in kinds if kind is not None}) > 1:
        text = ", ".join(
            f"rank {rank}: {' '.join(map(str, kind[1:])) if kind[0] == 'array' else repr(kind[1])}"
            for rank, kind in enumerate(held)
            if kind is not None
        )
        raise ValueError(f"{what} {name} must have one shape and dtype on all ranks: {text}")
