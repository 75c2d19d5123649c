"""An optimizer whose state is divided among the ranks."""

import contextlib
import copy
import functools
import math

import numpy as np

from mpchain import backend
from mpchain.distributed.optimizers.multi_node import MultiNodeOptimizer, make_reducer
from mpchain.serializer import Deserializer
from mpchain.update_rule import UpdateRule
from mpchain.utils.flat_layout import layouts
from mpchain.variable import Variable

ROW_BYTES = 16 * 1024 * 1024
"""Parameters are divided, and travel, in rows of about so many bytes."""


def create_sharded_optimizer(actual_optimizer, communicator, zero_fill=True):
    """Makes an optimizer step by the mean gradients of all ranks, on each for a part of the model.

    Args:
        actual_optimizer (Optimizer): any whose update rules treat each element on its own.
        communicator, zero_fill: see :func:`create_multi_node_optimizer`.

    Returns:
        ShardedOptimizer
    """
    reducer = make_reducer(communicator, zero_fill)
    return ShardedOptimizer(actual_optimizer, communicator, zero_fill, reducer)


class ShardedOptimizer(MultiNodeOptimizer):
    """A :class:`MultiNodeOptimizer` that keeps the optimizer's state only once among all ranks.

    Parameters are laid out one after the other, and each rank holds the state of an equal part of
    that row (also the float32 copies of float16 parameters), takes the step for it, and sends the
    new values to the others. The results are to the bit those of a :class:`MultiNodeOptimizer`:
    hooks see whole gradients and parameters on every rank, so that norms are those of the whole.
    Only hooks that are called after the update of one parameter cannot be had.

    To save the whole state under its ordinary names, all ranks call :meth:`gather_state` just
    before one of them saves (:class:`mpchain.distributed.extensions.GatherState` does so in a
    trainer). Any rank and any number of ranks can load what was saved so, and what any other
    optimizer has saved. To save and load in parts, see :meth:`local_state`.

    See S. Rajbhandari et al., ZeRO: memory optimizations toward training trillion parameter models,
    SC 2020, stage 1.

    Raises (by :meth:`setup`):
        ValueError: an update rule does not treat each element on its own.
    """

    def __init__(self, *args):
        super().__init__(*args)
        vars(self)["_rows"] = []

    def setup(self, link):
        self._rows = []
        super().setup(link)
        _check_rules(dict(link.namedparams()))
        self._add_publisher()
        self._divide()
        return self

    def local_state(self):
        """Returns the part of the state that this rank holds; does not communicate.

        Returns:
            dict: for each parameter that is initialized and has an update rule, by its name, a
            dict with: ``start`` and ``stop`` (int), the elements of the flattened (C order)
            parameter whose state this rank holds, possibly none; ``shape``, the parameter's; ``t``,
            the number of its updates; and ``state``, a dict of the rule's states by name, empty
            before the first update: arrays of shape (stop - start,), and whatever a rule keeps that
            is no array of the parameter's shape, as it is. The ranges of all ranks, in the order of
            ranks, make up each parameter.
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

    def set_local_state(self, parts):
        """Sets what :meth:`local_state` returned, here or, put together, on other ranks.

        Args:
            parts (dict): the same form, for the ranges that :meth:`local_state` has now.

        Raises:
            ValueError: names or ranges are others.
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

    def gather_state(self, root=0):
        """Gathers the whole state at one rank, which can then save it, until the next update.

        Args:
            root (int): the rank.
        """
        for _, param, rule in self._divided():
            rule.gather(param, self.communicator, root)

    def _step(self):
        self._divide()
        self._add_publisher()  # again, if somebody has set up the wrapped optimizer meanwhile
        super()._step()

    def _add_publisher(self):
        # As the first of the hooks after the update: others see all parameters updated.
        with contextlib.suppress(KeyError):  # it is there
            self.actual_optimizer.add_hook(self._publish, "publish_shards", "post")

    def _divided(self):
        """Yields name, parameter and rule of all parameters whose state is divided."""
        self._divide()
        for name, param in sorted(self.target.namedparams(include_uninit=False)):
            if param.update_rule is not None:
                yield name, param, param.update_rule

    def _divide(self):
        """Divides the parameters that are not divided yet; the same ones on all ranks."""
        if all(map(_is_divided, self.target.params(include_uninit=False))):
            return
        params = dict(sorted(self.target.namedparams(include_uninit=False)))
        new = {name: param for name, param in params.items() if not _is_divided(param)}
        _check_rules(new)
        self._rows += [
            Row(self.communicator, layout, new) for layout in layouts(new.items(), ROW_BYTES)
        ]
        self._rows = [row for row in self._rows if row.keep(params.values())]

    def _publish(self, optimizer):
        for row in self._rows:
            row.publish()


def _is_divided(param):
    rule = param.update_rule
    return rule is None or (isinstance(rule, ShardedRule) and rule.shape == param.shape)


def _check_rules(params):
    for name, param in params.items():
        rule = param.update_rule
        if rule is not None and not rule.is_elementwise:
            raise ValueError(
                f"create_sharded_optimizer: {type(rule).__name__}, which updates {name}, does "
                "not treat each element on its own, so that its state cannot be divided"
            )


class Row:
    """Parameters of one dtype in a flat layout, of which each rank has an equal part.

    The parameters' update rules are replaced by ones that update this rank's part.

    Args:
        comm: the ranks.
        layout: the places of the parameters.
        params: the parameters by name, at least those in the layout.
    """

    def __init__(self, comm, layout, params):
        self._comm, self._layout = comm, layout
        self._params = {name: params[name] for name in layout.slices}
        for name, place in layout.part(comm.rank, comm.size).items():
            params[name].update_rule = _divided_rule(params[name], place, self)

    def keep(self, params):
        """Forgets all but these parameters, and those that another row has now.

        Returns:
            Whether there are any left.
        """
        ids = {id(param) for param in params}
        self._params = {
            name: param
            for name, param in self._params.items()
            if id(param) in ids and getattr(param.update_rule, "row", None) is self
        }
        return bool(self._params)

    def publish(self):
        """Sends this rank's part of the parameters to all others, and sets theirs."""
        comm, layout = self._comm, self._layout
        if comm.size == 1:
            return
        xp = next(iter(self._params.values())).xp
        length = -(-layout.size // comm.size)
        whole = xp.zeros(length * comm.size, layout.dtype)
        for name, param in self._params.items():
            place = param.update_rule.place
            whole[layout.slices[name]][place] = param.array.reshape(-1)[place]
        own = whole[comm.rank * length : (comm.rank + 1) * length]
        views = layout.views(comm.iallgather(own).Wait().reshape(-1))
        for name, param in self._params.items():
            param.array[...] = views[name]


def _divided_rule(param, place, row):
    """Returns a rule that does for a part of the parameter what its rule does for all of it."""
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
        place (slice): the slice.
        shape: the whole parameter's.
        row (Row): the row that the parameter is in.
    """

    place = shape = row = None
    _is_whole = False  # whether the state is that of the whole parameter, as it was loaded
    _gathered = None
    _master = None  # the slice of the float32 copy of a float16 parameter

    @property
    def is_elementwise(self):
        return True

    def updated_param(self, param):
        is_new = self._fp32_param is None
        updated = super().updated_param(param)
        if updated is not param and is_new and self._master is not None:
            own, kept = self._own(updated.array), self._master
            # Where somebody else has set the parameter meanwhile, the copy follows.
            is_current = kept.astype(param.dtype) == self._own(param.array)
            own[...] = param.xp.where(is_current, kept, own)
        return updated

    def update(self, param):
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
                f"ShardedOptimizer: a hook of the update rule of {whole.name} is to be called "
                "after the update, but each rank updates only a part of the parameter"
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
        """Keeps of a state that was loaded as a whole this rank's part."""
        if self._is_whole:
            for name, value in self.state.items():
                if _is_array(value) and value.shape == shape:
                    self.state[name] = self._own(value).copy()
            self._is_whole = False

    # What is saved and loaded

    def own_state(self, param):
        """Returns the state of this rank's slice of the parameter."""
        self._cut(param.shape)
        return dict(self.state or {})

    def set_own_state(self, t, state, param):
        """Sets the state of this rank's slice of the parameter."""
        self.t, self.state = t, copy.deepcopy(state) or None
        self._is_whole = False
        self._gathered = self._master = self._fp32_param = self._fitted_array = None

    def gather(self, param, comm, root):
        """Gathers the state of the whole parameter at the root."""
        whole = {}
        for name, value in self.own_state(param).items():
            if _is_array(value) and value.shape == (self.place.stop - self.place.start,):
                parts = comm.gather(value, root)
                if parts is not None:
                    xp = backend.get_array_module(value)
                    value = xp.concatenate(parts).reshape(param.shape)
            whole[name] = value
        self._gathered = whole if comm.rank == root else None

    def serialize(self, serializer):
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
            if _is_array(value) and value.shape == (self.place.stop - self.place.start,):
                serializer.part(name, value, self.place.start, self.shape)
            else:
                serializer(name, value)

    def _whole_state(self):
        if self.state is None or self._is_whole or self._gathered is not None:
            return self._gathered or self.state
        size = math.prod(self.shape)
        if self.place == slice(0, size):
            return {
                name: value.reshape(self.shape)
                if _is_array(value) and value.shape == (size,)
                else value
                for name, value in self.state.items()
            }
        raise RuntimeError(
            "ShardedOptimizer.serialize: each rank has a part of the state; all ranks must call "
            "gather_state() before one of them, its root, saves the whole"
        )


def _is_array(value):
    return isinstance(value, np.ndarray) or backend.cuda.is_gpu_array(value)
