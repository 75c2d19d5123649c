"""The parts of parameters that a rank updates, and the update rules that do so."""

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.requests import Request
from mpchain.link import Link
from mpchain.parameter_tree import is_array
from mpchain.serializer import AbstractSerializer, Deserializer
from mpchain.typing import Array
from mpchain.update_rule import UpdateRule
from mpchain.utils.flat_layout import FlatLayout
from mpchain.variable import Parameter, Variable


class Row:
    """Parameters of one dtype in a flat layout, of which each rank has an equal part.

    The parameters' update rules are replaced by ones that update this rank's part.

    Args:
        comm: the ranks.
        layout: the places of the parameters.
        params: the parameters by name, at least those in the layout.

    Attributes:
        layout: the places of those parameters that the row still has.

    Example:
        >>> model = L.Linear(3, 2)
        >>> _ = optimizers.SGD().setup(model)
        >>> from mpchain.utils.flat_layout import layouts
        >>> params = dict(model.namedparams())
        >>> row = Row(comm, layouts(params.items())[0], params)
        >>> model.W.update_rule.place
        slice(0, 6, None)
    """

    def __init__(self, comm: Communicator, layout: FlatLayout, params: dict[str, Parameter]):
        self.layout = layout
        self._length = -(-layout.size // comm.size)
        self._begin = comm.rank * self._length
        self._params = {name: params[name] for name in layout.slices}
        self._parts = {}
        for name, place in layout.part(comm.rank, comm.size).items():
            params[name].update_rule = _divided_rule(params[name], place, self)

    def keep(self, params: Mapping[str, Parameter]) -> bool:
        """Forgets all but these parameters, which may have other names now, and those that another
        row has.

        Returns:
            Whether any are left.
        """
        names = {id(param): name for name, param in params.items()}
        kept = {
            name: names[id(param)]
            for name, param in self._params.items()
            if id(param) in names and getattr(param.update_rule, "row", None) is self
        }
        self.layout = self.layout.renamed(kept)
        self._params = {new: self._params[name] for name, new in kept.items()}
        self._parts = {}
        return bool(kept)

    def parts(self, grads: Mapping[str, Array | None], ranks: Any) -> dict[str, Parameter]:
        """Returns this rank's parts of the parameters by name, which share their memory.

        Args:
            grads: what becomes the parts' gradients, by name.
            ranks: what the parameters are divided among.
        """
        for name, param in self._params.items():
            part = self._parts.get(name)
            if part is None or not part.shows(param.array):
                self._parts[name] = part = Part(param, ranks)
            part.grad, part.update_rule = grads[name], param.update_rule
        return self._parts

    def drop_gradients(self) -> None:
        """Forgets the gradients of parts."""
        for part in self._parts.values():
            part.cleargrad()

    def piece_and_use(self) -> tuple[Array, Callable[[Array], None]]:
        """Returns what :meth:`Gathering.gather` takes to give all ranks the new values."""
        xp = next(iter(self._params.values())).xp
        piece = xp.zeros(self._length, self.layout.dtype)
        for name, param in self._params.items():
            place, begin = param.update_rule.place, self.layout.slices[name].start - self._begin
            if place.start < place.stop:
                own = param.array.reshape(-1)[place]
                piece[begin + place.start : begin + place.stop] = own
        return piece, self._set

    def _set(self, whole):
        for name, view in self.layout.views(whole).items():
            self._params[name].array[...] = view


class Part(Parameter):
    """This rank's part of a parameter, flat, as hooks and its update see it.

    Args:
        param: the parameter.
        ranks: what it is divided among.

    Attributes:
        whole: the parameter's array.

    Example:
        >>> model = L.Linear(3, 2)
        >>> optimizer = mpchain.distributed.create_sharded_optimizer(optimizers.SGD(), comm)
        >>> _ = optimizer.setup(model)
        >>> Part(model.W, comm).shape
        (6,)
    """

    def __init__(self, param: Parameter, ranks: Any):
        self.whole = param.array
        super().__init__(self.whole.reshape(-1)[param.update_rule.place], name=param.name)
        self.divided_among = ranks

    def shows(self, whole: Array) -> bool:
        """Whether this is a part of an array, and not a copy."""
        return whole is self.whole and whole.flags.c_contiguous

    def update(self) -> None:
        super().update()
        if not self.whole.flags.c_contiguous:  # and the part therefore a copy
            flat = self.whole.reshape(-1)
            flat[self.update_rule.place] = self.array
            self.whole[...] = flat.reshape(self.whole.shape)


class PartsOfModel:
    """What an optimizer updates in place of a model.

    Args:
        model: the model.
        params: by name, its parameters, or their parts.

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
    """The ranks that parameters are divided among, which sum few numbers without many messages.

    Args:
        comm: the ranks.

    Attributes:
        known: the next sum, if the ranks have it already.

    Example:
        >>> RanksOfParts(comm).iallreduce(np.array([3, 4])).Wait()
        array([3, 4])
    """

    known: float | None = None

    def __init__(self, comm: Communicator):
        self.rank, self.size = comm.rank, comm.size
        self._comm, self._rooms = comm, {}

    def iallreduce(self, x: Array) -> Request:
        """Sums an array, whose numbers float64 holds, over the ranks."""
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


def _divided_rule(param, place, row):
    """Returns a rule that updates a part of the parameter as its rule updates all of it."""
    rule = param.update_rule
    divided = object.__new__(_divided_class(type(rule)))
    vars(divided).update(vars(rule), row=row, place=place, shape=param.shape)
    divided._take_whole()
    return divided


@functools.cache
def _divided_class(rule_class):
    if issubclass(rule_class, ShardedRule):
        return rule_class
    return type(f"Sharded{rule_class.__name__}", (ShardedRule, rule_class), {})


class ShardedRule(UpdateRule):
    """An update rule that updates, and keeps the state of, a slice of its flattened parameter.

    Attributes:
        place: the slice.
        shape: the whole parameter's.
        row: the row that the parameter is in.

    Example:
        >>> model = L.Linear(3, 2)
        >>> optimizer = mpchain.distributed.create_sharded_optimizer(optimizers.Adam(), comm)
        >>> _ = optimizer.setup(model)
        >>> rule = model.W.update_rule
        >>> type(rule).__name__, rule.place, rule.shape
        ('ShardedAdamRule', slice(0, 6, None), (2, 3))
    """

    place = shape = row = None
    _is_whole = False  # whether state and copy are those of the whole parameter, as loaded
    _gathered = None
    _master = None  # the slice of the float32 copy of a float16 or bfloat16 parameter

    @property
    def is_elementwise(self) -> bool:
        return True

    def updated_param(self, param: Parameter) -> Parameter:
        is_new = self._fp32_param is None
        updated = super().updated_param(param)
        if updated is not param and is_new and self._master is not None:
            self._cut(self.shape)
            own, kept = self._own(updated.array), param.device.send(self._master)
            # Where the parameter was set by others in the meantime, its value counts.
            is_current = kept.astype(param.dtype) == self._own(param.array)
            own[...] = param.xp.where(is_current, kept, own)
        return updated

    def update(self, param: Parameter) -> None:
        self._cut(self.shape)
        updated = self.updated_param(param)
        if self.enabled and updated.grad is not None:
            self._update_own(updated)
        if updated is not param:
            self._master = self._own(updated.array).copy()
            param.array[...] = updated.array
            self._fp32_param = None

    def _own(self, array):
        """Returns this rank's part of an array, which may be that already."""
        is_part = array.shape == (self.place.stop - self.place.start,)
        return array if is_part else array.reshape(-1)[self.place]

    def _update_own(self, param):
        """Updates this rank's part of a parameter, which may be that already."""
        if self._hooks.at("post"):
            raise ValueError(
                f"ShardedOptimizer: the update rule of {param.name} has a hook with timing 'post', "
                "but each rank updates only a part of the parameter: use timing 'pre'"
            )
        self._gathered = None
        flat = param.array if param.ndim == 1 else param.array.reshape(-1)
        own = param
        if self._own(flat) is not param.array:
            own = Variable(self._own(flat), name=param.name)
        self.prepare(own)
        for hook in self._hooks.at("pre"):
            hook(self, param)
        if own is not param:
            own.grad = self._own(param.grad)
        self.update_core(own)
        if not param.array.flags.c_contiguous:
            param.array[...] = flat.reshape(param.shape)

    def _cut(self, shape):
        """Reduces what was loaded as a whole to this rank's part."""
        if self._is_whole:
            for name, value in (self.state or {}).items():
                if is_array(value) and value.shape == shape:
                    self.state[name] = self._own(value).copy()
            if self._master is not None:
                self._master = self._own(self._master).copy()
            self._is_whole = False

    def _take_whole(self):
        """Takes note of what was loaded, or was there before the parameter was divided."""
        copy, self._fp32_param = self._fp32_param, None
        self._master = None if copy is None else copy.array
        self._is_whole = self.state is not None or copy is not None

    # Saving and loading

    def _is_own(self, value):
        """Returns whether a value of the state is an array of this rank's slice."""
        return is_array(value) and value.shape == (self.place.stop - self.place.start,)

    def own_state(self, param: Parameter) -> dict[str, Any]:
        """Returns the state of this rank's slice of the parameter, with the float32 copy."""
        self._cut(param.shape)
        return self._with_copy(self.state or {})

    def _with_copy(self, state):
        """Adds the float32 copy of a float16 or bfloat16 parameter by its name in files."""
        return dict(state) if self._master is None else state | {"fp32_param": self._master}

    def set_own_state(self, t: int, state: dict[str, Any], param: Parameter) -> None:
        """Sets the state of this rank's slice of the parameter."""
        state = copy.deepcopy(state)
        self.t, self._master, self.state = t, state.pop("fp32_param", None), state or None
        self._is_whole = False
        self._gathered = self._fp32_param = self._fitted_array = None

    def gather(self, param: Parameter, comm: Communicator, root: int) -> None:
        """Gathers the state of the whole parameter at the root."""
        whole = {}
        for name, value in self.own_state(param).items():
            if self._is_own(value):
                parts = comm.gather(value, root)
                if parts is not None:
                    xp = backend.get_array_module(value)
                    value = xp.concatenate(parts).reshape(param.shape)
            whole[name] = value
        self._gathered = whole if comm.rank == root else None

    def serialize(self, serializer: AbstractSerializer) -> None:
        if isinstance(serializer, Deserializer):
            serializer.remember(self)
            self.state = self._gathered = self._master = None
            super().serialize(serializer)
            self._take_whole()
            return
        if hasattr(serializer, "part"):  # of a checkpoint, to which every rank gives its part
            self._save_part(serializer)
            return
        own, self.state = self.state, self._whole_state()
        try:
            super().serialize(serializer)
        finally:
            self.state = own

    def _save_part(self, serializer):
        self._cut(self.shape)
        serializer("t", self.t)
        for name, value in self._with_copy(self.state or {}).items():
            if self._is_own(value):
                serializer.part(name, value, self.place.start, self.shape)
            else:
                serializer(name, value)

    def _whole_state(self):
        if self.state is None or self._gathered is not None:
            return self._gathered or self.state
        if self._is_whole:
            return self._with_copy(self.state)
        if self.place == slice(0, math.prod(self.shape)):
            return {
                name: value.reshape(self.shape) if self._is_own(value) else value
                for name, value in self._with_copy(self.state).items()
            }
        raise RuntimeError(
            "ShardedOptimizer.serialize: each rank has a part of the state; all ranks must call "
            "gather_state() before one of them, its root, saves the whole"
        )
