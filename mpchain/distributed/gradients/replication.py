"""Making parameters and persistent values the same on all ranks."""

import hashlib

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.configuration import using_config
from mpchain.distributed.communicators.arrays import WIRE_DTYPES
from mpchain.parameter_tree import is_array

BUCKET_BYTES = 16 * 1024 * 1024
"""Small arrays travel together, in messages of about this size."""


def replicate(comm, params, persistents):
    """Makes parameters and persistent values those of rank 0 on all ranks.

    What rank 0 does not have (a parameter that is not initialized, a persistent value that is None)
    is taken from the lowest rank that has it. A parameter that is not initialized on a rank is
    initialized there. What no rank has stays so.

    Args:
        comm (Communicator): the ranks.
        params (dict): parameters by name, with the same names on all ranks.
        persistents (dict): :class:`~mpchain.distributed.gradients.persistents.Persistent` by path,
            likewise.

    Raises:
        ValueError: names, shapes or dtypes differ between ranks.
    """
    kinds = {name: _kind(param.array) for name, param in params.items()}
    kinds |= {name: _kind(persistent.value) for name, persistent in persistents.items()}
    tables = _tables_of_all(comm, kinds)
    _check_names(tables)
    by_root = {}
    for name in sorted(kinds):
        held = [table[name] for table in tables]
        root = next((rank for rank, kind in enumerate(held) if kind is not None), None)
        if root is None:
            continue
        _check_alike("parameter" if name in params else "persistent value", name, held)
        array = (_room_in_param if name in params else _room_in_persistent)(
            (params if name in params else persistents)[name], held[root]
        )
        if array is not None:
            by_root.setdefault(root, []).append(array)
    for root, arrays in sorted(by_root.items()):
        _broadcast(comm, arrays, root)


def are_alike(comm, params):
    """Returns whether parameters have the same values on all ranks; on all ranks the same answer.

    Args:
        comm (Communicator): the ranks.
        params (dict): parameters by name.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, param in sorted(params.items()):
        digest.update(f"{name} {param.is_initialized}".encode())
        if param.is_initialized:
            array = np.ascontiguousarray(cuda.to_cpu(param.array))
            digest.update(array.reshape(-1).view(np.uint8))
    return len(set(comm.allgather_obj(digest.digest()))) == 1


def _tables_of_all(comm, table):
    """Returns the list of all ranks' tables, of which only a hash travels where they are equal."""
    digest = hashlib.blake2b(repr(sorted(table.items())).encode(), digest_size=16).digest()
    are_equal = len(set(comm.allgather_obj(digest))) == 1
    return [table] * comm.size if are_equal else comm.allgather_obj(table)


def _kind(value):
    """What the ranks tell each other: shape and dtype of an array, any other value as it is."""
    if value is None:
        return None
    return ("array", value.shape, str(value.dtype)) if is_array(value) else ("value", value)


def _room_in_param(param, kind):
    """Returns the parameter's array, which is about to be overwritten."""
    if not param.is_initialized:
        # These values are about to be replaced: they must not cost the program random numbers.
        with using_config("rng", np.random.RandomState(0)):
            param.initialize(kind[1])
    return param.array


def _room_in_persistent(persistent, kind):
    """Sets a value that is no array; returns the array that is about to be overwritten, or None."""
    if kind[0] == "value":
        persistent.value = kind[1]
        return None
    if persistent.value is None:
        device = persistent.link.device
        with device.create_context():
            persistent.value = device.xp.empty(*kind[1:])
    return persistent.value


def _broadcast(comm, arrays, root):
    """Overwrites arrays with those of the root, all of them under way at the same time."""
    requests, with_room = [], {}
    # From wide to narrow elements, each array of a bucket begins at a multiple of its width.
    for array in sorted(arrays, key=lambda array: -array.itemsize):
        xp = backend.get_array_module(array)
        if (
            array.nbytes >= BUCKET_BYTES // 16
            and array.dtype in WIRE_DTYPES
            and array.flags.c_contiguous
        ):
            requests.append((comm.ibcast(array, root), None))
            continue
        if array.size == 0:
            continue
        bucket = with_room.setdefault(xp, [])
        bucket.append(array)
        if sum(x.nbytes for x in bucket) >= BUCKET_BYTES:
            requests.append(_send_together(comm, with_room.pop(xp), root))
    requests += [_send_together(comm, bucket, root) for bucket in with_room.values()]
    for request, take in requests:
        request.Wait()
        if take is not None and comm.rank != root:
            take()


def _send_together(comm, arrays, root):
    """Begins to broadcast arrays as one; returns the request, and what takes them from it."""
    xp = backend.get_array_module(arrays[0])
    ends = np.cumsum([array.nbytes for array in arrays]).tolist()
    message = xp.empty(-(-ends[-1] // 4), np.int32)
    in_bytes = message.view(np.uint8)
    parts = [
        in_bytes[end - array.nbytes : end].view(array.dtype).reshape(array.shape)
        for end, array in zip(ends, arrays, strict=True)
    ]

    def take():
        for part, array in zip(parts, arrays, strict=True):
            array[...] = part

    if comm.rank == root:
        for part, array in zip(parts, arrays, strict=True):
            part[...] = array
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
    """Raises ValueError if arrays have different shapes or dtypes, or only some are arrays."""
    kinds = [None if kind is None else kind if kind[0] == "array" else "a value" for kind in held]
    if len({kind for kind in kinds if kind is not None}) > 1:
        text = ", ".join(
            f"rank {rank}: {' '.join(map(str, kind[1:])) if kind[0] == 'array' else repr(kind[1])}"
            for rank, kind in enumerate(held)
            if kind is not None
        )
        raise ValueError(f"{what} {name} must have one shape and dtype on all ranks: {text}")
