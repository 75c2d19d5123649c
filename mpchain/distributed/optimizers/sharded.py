"""An optimizer whose state is partitioned across ranks."""

import contextlib
import copy
import functools
import math
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from mpchain import backend
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.optimizers.multi_node import MultiNodeOptimizer, make_reducer
from mpchain.link import Link
from mpchain.optimizer import Optimizer
from mpchain.parameter_tree import is_array
from mpchain.serializer import AbstractSerializer, Deserializer
from mpchain.typing import Array
from mpchain.update_rule import UpdateRule
from mpchain.utils.flat_layout import FlatLayout, layouts
from mpchain.variable import Parameter, Variable

ROW_BYTES = 16 * 1024 * 1024
"""Parameters are partitioned, and sent, in rows of about this many bytes."""


def create_sharded_optimizer(
    actual_optimizer: Optimizer, communicator: Communicator, zero_fill: bool = True
) -> "ShardedOptimizer":
    """Wraps an optimizer whose state is partitioned across ranks (ZeRO stage 1).

    Args:
        actual_optimizer: any optimizer whose update rules treat each element on its own.
        communicator, zero_fill: see :func:`create_multi_node_optimizer`.

    Example:
        >>> model = L.Linear(2, 1, initialW=0)
        >>> optimizer = mpchain.distributed.create_sharded_optimizer(optimizers.Adam(), comm)
        >>> optimizer = optimizer.setup(model)
        >>> optimizer.update(lambda x: F.mean(model(x)), np.ones((4, 2), np.float32))
        >>> part = optimizer.local_state()["/W"]
        >>> part["start"], part["stop"], sorted(part["state"])
        (0, 2, ['m', 'v'])
    """
    reducer = make_reducer(communicator, zero_fill)
    return ShardedOptimizer(actual_optimizer, communicator, zero_fill, reducer)


class ShardedOptimizer(MultiNodeOptimizer):
    """A :class:`MultiNodeOptimizer` that keeps the optimizer's state only once among all ranks.

    Parameters are laid out one after the other, and each rank holds the state of an equal part of
    that row (also the float32 copies of float16 parameters), takes the step for it, and sends the
    new values to the others. The results have the same bits as those of a
    :class:`MultiNodeOptimizer`: hooks see whole gradients and parameters on every rank, and norms
    are those of the whole. Only hooks after the update of a single parameter are not possible.

    To save the whole state under its ordinary names, all ranks call :meth:`gather_state` just
    before one of them saves (:class:`mpchain.distributed.extensions.GatherState` does so in a
    trainer). Any number of ranks can load such files, and those of any other optimizer. To save and
    load in parts, see :meth:`local_state`.

    See S. Rajbhandari et al., ZeRO: memory optimizations toward training trillion parameter models,
    SC 2020, stage 1.

    Raises (by :meth:`setup`):
        ValueError: an update rule does not treat each element on its own.

    Example:
        >>> optimizer = mpchain.distributed.create_sharded_optimizer(optimizers.SGD(), comm)
        >>> optimizer = optimizer.setup(L.Linear(3, 2))
        >>> optimizer.local_state()["/W"]["stop"]
        6
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        vars(self).update(_rows=[], _rooms={}, _own_hook=self._publish)

    def setup(self, link: Link) -> Self:
        self._rows = []
        super().setup(link)
        _check_rules(dict(link.namedparams()))
        self._add_publisher()
        self._divide()
        return self

    def local_state(self) -> dict[str, dict[str, Any]]:
        """Returns the part of the state that this rank holds; does not communicate.

        Returns:
            For each parameter that is initialized and has an update rule, by its name, a dict with:
            ``start`` and ``stop`` (int), the elements of the flattened (C order) parameter whose
            state this rank holds, possibly none; ``shape``, the parameter's; ``t``, the number of
            its updates; and ``state``, a dict of the rule's states by name, empty before the first
            update: arrays of shape (stop - start,), and values that are not arrays of the
            parameter's shape as they are. The ranges of all ranks, in the order of ranks, make up
            each parameter.
        """
        return {
            name: {
                "start": rule.place.start,
                "stop": rule.place.stop,
                "shape": param.shape,
                "t": rule.t,
                "state": rule.own_state(param),
            }
            for name, param, rule in self._divided()
        }

    def set_local_state(self, parts: dict[str, dict[str, Any]]) -> None:
        """Sets what :meth:`local_state` returned, here or, put together, on other ranks.

        Args:
            parts: the same form, for the ranges that :meth:`local_state` has now.

        Raises:
            ValueError: names or ranges differ from these.
        """
        divided = {name: (param, rule) for name, param, rule in self._divided()}
        if unlike := divided.keys() ^ parts.keys():
            raise ValueError(
                "ShardedOptimizer.set_local_state: parts must be of the model's parameters, "
                f"but differ in {min(unlike)}"
            )
        for name, (param, rule) in divided.items():
            part, held = parts[name], (rule.place.start, rule.place.stop)
            if (part["start"], part["stop"]) != held:
                raise ValueError(
                    f"ShardedOptimizer.set_local_state: this rank holds elements {held} of {name}, "
                    f"not {part['start'], part['stop']}"
                )
            rule.set_own_state(part["t"], part["state"], param)

    def gather_state(self, root: int = 0) -> None:
        """Gathers the whole state at rank ``root``, which can save it until the next update."""
        for _, param, rule in self._divided():
            rule.gather(param, self.communicator, root)

    def fit_to_ranks(self) -> None:
        super().fit_to_ranks()
        self._rows, self._rooms = [], {}
        if self.target is not None:
            for param in self.target.params():
                if isinstance(param.update_rule, ShardedRule):
                    param.update_rule.shape = param.update_rule.state = None  # to be divided anew
            self._divide()

    def _step(self, draws_alike):
        self._divide()
        self._add_publisher()  # again, in case the wrapped optimizer was set up again
        super()._step(draws_alike)

    def _add_publisher(self):
        # As the first of the hooks after the update: others see all parameters updated.
        with contextlib.suppress(KeyError):  # it exists already
            self.actual_optimizer.add_hook(self._publish, "publish_shards", "post")

    def _divided(self):
        """Yields name, parameter and rule of all parameters whose state is divided."""
        self._divide()
        for name, param in sorted(self.target.namedparams(include_uninit=False)):
            if param.update_rule is not None:
                yield name, param, param.update_rule

    def _divide(self):
        """Divides the parameters that are not divided yet; the same ones on all ranks."""
        params = dict(sorted(self.target.namedparams(include_uninit=False)))
        new = {name: param for name, param in params.items() if not _is_divided(param)}
        if not new:
            return
        _check_rules(new)
        self._rows += [
            Row(self.communicator, layout, new) for layout in layouts(new.items(), ROW_BYTES)
        ]
        self._rows = [row for row in self._rows if row.keep(params.values())]
        self._rooms = {}

    def _publish(self, optimizer):
        for row in self._rows:
            row.publish(self._rooms)


def _is_divided(param):
    rule = param.update_rule
    return rule is None or (isinstance(rule, ShardedRule) and rule.shape == param.shape)


def _check_rules(params):
    for name, param in params.items():
        rule = param.update_rule
        if rule is not None and not rule.is_elementwise:
            raise ValueError(
                f"create_sharded_optimizer: {type(rule).__name__}, which updates {name}, does "
                "not treat each element on its own: its state cannot be divided"
            )


class Row:
    """Parameters of one dtype in a flat layout, of which each rank has an equal part.

    The parameters' update rules are replaced by ones that update this rank's part.

    Args:
        comm: the ranks.
        layout: the places of the parameters.
        params: the parameters by name, at least those in the layout.

    Example:
        >>> model = L.Linear(3, 2)
        >>> _ = optimizers.SGD().setup(model)
        >>> params = dict(model.namedparams())
        >>> row = Row(comm, layouts(params.items())[0], params)
        >>> model.W.update_rule.place
        slice(0, 6, None)
    """

    def __init__(self, comm: Communicator, layout: FlatLayout, params: dict[str, Parameter]):
        self._comm, self._layout = comm, layout
        self._params = {name: params[name] for name in layout.slices}
        for name, place in layout.part(comm.rank, comm.size).items():
            params[name].update_rule = _divided_rule(params[name], place, self)

    def keep(self, params: Iterable[Parameter]) -> bool:
        """Forgets all but these parameters, and those that another row has now.

        Returns:
            Whether any are left.
        """
        ids = {id(param) for param in params}
        self._params = {
            name: param
            for name, param in self._params.items()
            if id(param) in ids and getattr(param.update_rule, "row", None) is self
        }
        return bool(self._params)

    def publish(self, rooms: dict[int, Array]) -> None:
        """Sends this rank's part of the parameters to all others, and receives theirs.

        Args:
            rooms: shared memory that is kept for the next call, by size; filled here.
        """
        comm, layout = self._comm, self._layout
        if comm.size == 1:
            return
        xp = next(iter(self._params.values())).xp
        if xp is np and comm.inter_size < comm.size:
            self._publish_by_hosts(rooms)
            return
        length = -(-layout.size // comm.size)
        whole = xp.zeros(length * comm.size, layout.dtype)
        self._take_own(whole)
        own = whole[comm.rank * length : (comm.rank + 1) * length]
        self._set(layout.views(comm.iallgather(own).Wait().reshape(-1)))

    def _publish_by_hosts(self, rooms):
        """Sums the parts of all ranks, which are 0 elsewhere, so that hosts send each only once.

        As integers, all bits stay as they are.
        """
        n_bytes = self._layout.size * self._layout.dtype.itemsize
        n = -(-n_bytes // 4)
        if n not in rooms:
            (rooms[n],) = self._comm.make_buffers([(n, np.int32)])
        rooms[n][:] = 0
        whole = rooms[n].view(np.uint8)[:n_bytes].view(self._layout.dtype)
        self._take_own(whole)
        self._comm.iallreduce(rooms[n]).Wait()
        self._set(self._layout.views(whole))

    def _take_own(self, whole):
        for name, param in self._params.items():
            place = param.update_rule.place
            whole[self._layout.slices[name]][place] = param.array.reshape(-1)[place]

    def _set(self, views):
        for name, param in self._params.items():
            param.array[...] = views[name]


def _divided_rule(param, place, row):
    """Returns a rule that updates a part of the parameter as its rule updates all of it."""
    rule = param.update_rule
    divided = object.__new__(_divided_class(type(rule)))
    vars(divided).update(vars(rule), row=row, place=place, shape=param.shape)
    divided._is_whole = divided.state is not None
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
    _is_whole = False  # whether the state is that of the whole parameter, as it was loaded
    _gathered = None
    _master = None  # the slice of the float32 copy of a float16 parameter

    @property
    def is_elementwise(self) -> bool:
        return True

    def updated_param(self, param: Parameter) -> Parameter:
        is_new = self._fp32_param is None
        updated = super().updated_param(param)
        if updated is not param and is_new and self._master is not None:
            own, kept = self._own(updated.array), self._master
            # Where the parameter was set by others in the meantime, its value counts.
            is_current = kept.astype(param.dtype) == self._own(param.array)
            own[...] = param.xp.where(is_current, kept, own)
        return updated

    def update(self, param: Parameter) -> None:
        updated = self.updated_param(param)
        if self.enabled and updated.grad is not None:
            self._update_own(updated)
        if updated is not param:
            self._master = self._own(updated.array).copy()
            param.array[...] = updated.array
            self._fp32_param = None

    def _own(self, array):
        return array.reshape(-1)[self.place]

    def _update_own(self, whole):
        if self._hooks.at("post"):
            raise ValueError(
                f"ShardedOptimizer: the update rule of {whole.name} has a hook with timing 'post', "
                "but each rank updates only a part of the parameter: use timing 'pre'"
            )
        flat = whole.array.reshape(-1)
        own = Variable(flat[self.place], name=whole.name)
        self._gathered = None
        self._cut(whole.shape)
        self.prepare(own)
        for hook in self._hooks.at("pre"):
            hook(self, whole)
        own.grad = self._own(whole.grad)
        self.update_core(own)
        if not whole.array.flags.c_contiguous:
            whole.array[...] = flat.reshape(whole.shape)

    def _cut(self, shape):
        """Reduces a state that was loaded as a whole to this rank's part."""
        if self._is_whole:
            for name, value in self.state.items():
                if is_array(value) and value.shape == shape:
                    self.state[name] = self._own(value).copy()
            self._is_whole = False

    # Saving and loading

    def _is_own(self, value):
        """Returns whether a value of the state is an array of this rank's slice."""
        return is_array(value) and value.shape == (self.place.stop - self.place.start,)

    def own_state(self, param: Parameter) -> dict[str, Any]:
        """Returns the state of this rank's slice of the parameter."""
        self._cut(param.shape)
        return dict(self.state or {})

    def set_own_state(self, t: int, state: dict[str, Any], param: Parameter) -> None:
        """Sets the state of this rank's slice of the parameter."""
        self.t, self.state = t, copy.deepcopy(state) or None
        self._is_whole = False
        self._gathered = self._master = self._fp32_param = self._fitted_array = None

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
            self.state = self._gathered = self._master = None
            super().serialize(serializer)
            self._is_whole = self.state is not None
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
        for name, value in (self.state or {}).items():
            if self._is_own(value):
                serializer.part(name, value, self.place.start, self.shape)
            else:
                serializer(name, value)

    def _whole_state(self):
        if self.state is None or self._is_whole or self._gathered is not None:
            return self._gathered or self.state
        if self.place == slice(0, math.prod(self.shape)):
            return {
                name: value.reshape(self.shape) if self._is_own(value) else value
                for name, value in self.state.items()
            }
        raise RuntimeError(
            "ShardedOptimizer.serialize: each rank has a part of the state; all ranks must call "
            "gather_state() before one of them, its root, saves the whole"
        )
