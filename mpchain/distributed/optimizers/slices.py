"""The slices of parameters that a rank updates and whose state its update rules keep."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.requests import Request
from mpchain.link import Link
from mpchain.parameter_tree import is_array
from mpchain.serializer import AbstractSerializer
from mpchain.typing import Array
from mpchain.update_rule import UpdateRule
from mpchain.utils.flat_layout import FlatLayout
from mpchain.variable import Parameter, Variable


class Row:
    """Parameters of one dtype in a flat layout that is divided equally among the ranks.

    The update rules of the parameters are set to update only this rank's slices.

    Args:
        comm: the communicator of the ranks.
        layout: the offsets of the parameters in the row.
        params: dict from name to parameter, with at least the parameters of the layout.

    Attributes:
        layout: the offsets of the parameters that are still in the row.

    Example:
        >>> model = L.Linear(3, 2)
        >>> _ = optimizers.SGD().setup(model)
        >>> from mpchain.utils.flat_layout import layouts
        >>> params = dict(model.namedparams())
        >>> row = Row(comm, layouts(params.items())[0], params)
        >>> model.W.update_rule.slice.place
        slice(0, 6, None)
    """

    def __init__(self, comm: Communicator, layout: FlatLayout, params: dict[str, Parameter]):
        self.layout = layout
        self._length = -(-layout.size // comm.size)
        self._begin = comm.rank * self._length
        self._params = {name: params[name] for name in layout.slices}
        self._parts = {}
        for name, place in layout.part(comm.rank, comm.size).items():
            rule = params[name].update_rule
            rule.slice = Slice(rule, place, params[name].shape, self)

    def keep(self, params: Mapping[str, Parameter]) -> bool:
        """Removes parameters that are not in ``params``, or that this row no longer holds.
        The parameters that stay may have new names.

        Returns:
            Whether any parameters are left.
        """
        names = {id(param): name for name, param in params.items()}
        kept = {
            name: names[id(param)]
            for name, param in self._params.items()
            if id(param) in names and self._has(param.update_rule)
        }
        self.layout = self.layout.renamed(kept)
        self._params = {new: self._params[name] for name, new in kept.items()}
        self._parts = {}
        return bool(kept)

    def _has(self, rule):
        return rule is not None and rule.slice is not None and rule.slice.row is self

    def parts(self, grads: Mapping[str, Array | None], ranks: object) -> dict[str, Parameter]:
        """Returns a dict from name to this rank's part, which shares the memory of a contiguous
        parameter.

        Args:
            grads: dict from name to the gradient of each part.
            ranks: the ranks among which the parameters are divided.
        """
        for name, param in self._params.items():
            part = self._parts.get(name)
            if part is None or not part.shows(param.array):
                self._parts[name] = part = Part(param, ranks)
            part.grad, part.update_rule = grads[name], param.update_rule
            part.update_rule.slice.forget()
        return self._parts

    def drop_gradients(self) -> None:
        """Discards the gradients of parts, and parts that are copies."""
        for part in self._parts.values():
            part.cleargrad()
        self._parts = {name: x for name, x in self._parts.items() if x.shows(x.whole)}

    def piece_and_use(self) -> tuple[Array, Callable[[Array], None]]:
        """Returns the pair with which :meth:`Gathering.gather` sends new values to all ranks."""
        xp = next(iter(self._params.values())).xp
        piece = xp.zeros(self._length, self.layout.dtype)
        for name, param in self._params.items():
            own, begin = param.update_rule.slice, self.layout.slices[name].start - self._begin
            if own.place.start < own.place.stop:
                part = self._parts.get(name)
                is_in_use = part is not None and part.whole is param.array
                values = own.of(part.array if part is not None and is_in_use else param.array)
                piece[begin + own.place.start : begin + own.place.stop] = values
        return piece, self._set

    def _set(self, whole):
        for name, view in self.layout.views(whole).items():
            self._params[name].array[...] = view


class Part(Parameter):
    """This rank's part of a parameter, flattened, for hooks and the update.

    Args:
        param: the parameter.
        ranks: the ranks among which the parameter is divided.

    Attributes:
        whole: the parameter's array.

    Example:
        >>> model = L.Linear(3, 2)
        >>> optimizer = mpchain.distributed.create_sharded_optimizer(optimizers.SGD(), comm)
        >>> _ = optimizer.setup(model)
        >>> Part(model.W, comm).shape
        (6,)
    """

    def __init__(self, param: Parameter, ranks: object):
        self.whole = param.array
        super().__init__(param.update_rule.slice.of(self.whole), name=param.name)
        self.divided_among = ranks

    def shows(self, whole: Array) -> bool:
        """Returns whether this part is a view of ``whole``, and not a copy of a part of it."""
        return whole is self.whole and whole.flags.c_contiguous


class PartsOfModel:
    """The object that an optimizer updates instead of a model.

    Args:
        model: the model.
        params: dict from name to each parameter of the model, or to a part of it.

    Example:
        >>> model = L.Linear(3, 2)
        >>> [*PartsOfModel(model, {"/W": model.W}).namedparams()] == [("/W", model.W)]
        True
    """

    def __init__(self, model: Link, params: Mapping[str, Parameter]):
        self.device, self._params = model.device, params

    def namedparams(self, include_uninit: bool = True) -> Iterator[tuple[str, Parameter]]:
        yield from self._params.items()

    def params(self, include_uninit: bool = True) -> Iterator[Parameter]:
        yield from self._params.values()


class RanksOfParts:
    """The ranks among which parameters are divided; sums a few scalars with few messages.

    Args:
        comm: the communicator of the ranks.

    Attributes:
        known: the result of the next sum, if the ranks know it already; otherwise None.

    Example:
        >>> RanksOfParts(comm).iallreduce(np.array([3, 4])).Wait()
        array([3, 4])
    """

    known: float | None = None

    def __init__(self, comm: Communicator):
        self.rank, self.size = comm.rank, comm.size
        self._comm, self._rooms = comm, {}

    def iallreduce(self, x: Array) -> Request:
        """Sums an array over the ranks; float64 must be able to represent its elements."""
        if self.known is not None:
            known, self.known = self.known, None
            return Request(np.full_like(x, known))
        if not isinstance(x, np.ndarray):
            return self._comm.iallreduce(x)
        if x.size not in self._rooms:
            (self._rooms[x.size],) = self._comm.make_buffers([(x.size, np.float64)])
        room = self._rooms[x.size]
        room[...] = x
        self._comm.iallreduce(room).Wait()
        return Request(room.astype(x.dtype))


class Slice:
    """The elements of a flattened parameter that a rule updates, and whose state the rule keeps.

    Args:
        rule: the update rule, which may hold the state of the whole parameter.
        place: the range of the elements in the flattened parameter.
        shape: the whole parameter's shape.
        row: the row that holds the parameter.

    Attributes:
        place, shape, row: the arguments of the same names.
        whole: the rule's loaded or gathered state of the whole parameter, until the next update;
            None if this rank does not hold it.

    Example:
        >>> model = L.Linear(3, 2)
        >>> optimizer = mpchain.distributed.create_sharded_optimizer(optimizers.Adam(), comm)
        >>> _ = optimizer.setup(model)
        >>> rule = model.W.update_rule
        >>> type(rule).__name__, rule.slice.place, rule.slice.shape
        ('AdamRule', slice(0, 6, None), (2, 3))
    """

    def __init__(self, rule: UpdateRule, place: slice, shape: tuple[int, ...], row: Row):
        self.place, self.shape, self.row = place, shape, row
        self.whole = kept = rule.kept()
        self._copy = None  # a float32 copy of the whole parameter during its update
        cut = {n: self.of(x).copy() for n, x in kept.items() if is_array(x) and x.shape == shape}
        rule.keep(rule.t, kept | cut)

    def again(self, rule: UpdateRule) -> "Slice":
        """Returns a new slice from the state that an update rule has loaded for the whole
        parameter."""
        return Slice(rule, self.place, self.shape, self.row)

    def forget(self) -> None:
        """Drops the copy of the whole parameter, before only the slice is updated."""
        self.whole = self._copy = None

    def is_own(self, array: Any) -> bool:
        """Returns whether an array, or a parameter, holds only the elements of the slice."""
        return array.shape == (self.place.stop - self.place.start,)

    def of(self, array: Array) -> Array:
        """Returns the slice of an array, or the array itself if it already is the slice."""
        return array if self.is_own(array) else array.reshape(-1)[self.place]

    def update(self, rule: UpdateRule, param: Parameter) -> None:
        """Updates as :meth:`UpdateRule.update` does, but only the slice; hooks see the whole
        parameter."""
        updated = rule.updated_param(param)
        if rule.enabled and updated.grad is not None:
            if rule.hooks_at("post"):
                raise ValueError(
                    f"ShardedOptimizer: the update rule of {param.name} has a hook with timing "
                    "'post', but each rank updates only a part of the parameter: use timing 'pre'"
                )
            self.whole = None
            own = Variable(self.of(updated.array), name=param.name)
            rule.prepare(own)
            for hook in rule.hooks_at("pre"):
                hook(rule, updated)
            own.grad = self.of(updated.grad)
            rule.update_core(own)
            self._set(updated.array, own.array)
        if updated is not param:
            rule.copy_of(self._part_of(param)).array[...] = self.of(updated.array)
            param.array[...] = updated.array
            updated.cleargrad()
            self._copy = None

    def copy_of(self, rule: UpdateRule, param: Parameter) -> Parameter:
        """Returns a float32 copy of the whole parameter, whose slice comes from the rule's own
        copy."""
        if self._copy is None:
            part = self._part_of(param)
            kept = rule.copy_of(part).array
            self._copy = Parameter(param.array.astype(np.float32, order="C"), name=param.name)
            # If other code has set the parameter since the last update, its new value is used.
            is_current = kept.astype(param.dtype) == part.array
            own = self.of(self._copy.array)
            own[...] = param.xp.where(is_current, kept, own)
        return self._copy

    def _part_of(self, param):
        return Parameter(self.of(param.array), name=param.name)

    def _set(self, whole, own):
        """Writes an updated slice into the whole parameter, if the slice is a copy."""
        if not whole.flags.c_contiguous:
            flat = whole.reshape(-1)
            flat[self.place] = own
            whole[...] = flat.reshape(self.shape)

    # These methods save and load the state of the rule.

    def gather(self, rule: UpdateRule, comm: Communicator, root: int) -> None:
        """Gathers the states of the rules of all ranks at the root."""
        whole = rule.kept()
        for name, value in whole.items():
            if is_array(value) and self.is_own(value):
                parts = comm.gather(value, root)
                if parts is not None:
                    xp = backend.get_array_module(value)
                    whole[name] = xp.concatenate(parts).reshape(self.shape)
        self.whole: Any = whole if comm.rank == root else None

    def save(self, serializer: AbstractSerializer, name: str, value: Any) -> None:
        """Saves a value of a rule's state: as a part if the file takes parts, otherwise whole."""
        if not (is_array(value) and self.is_own(value)):
            serializer(name, value)
        elif serializer.takes_parts:  # every rank saves its slice in a checkpoint
            serializer.part(name, value, self.place.start, self.shape)
        elif self._has_whole(name, value):
            serializer(name, self.whole[name])
        elif self.place == slice(0, math.prod(self.shape)):
            serializer(name, value.reshape(self.shape))
        else:
            raise RuntimeError(
                "ShardedOptimizer.serialize: each rank has only a part of the state: call "
                "gather_state() on all ranks before the rank that is its root saves the whole state"
            )

    def _has_whole(self, name, value):
        """Returns whether the whole value is known and its slice has not changed since then."""
        whole = (self.whole or {}).get(name)
        return whole is not None and self.of(whole).tobytes() == value.tobytes()
