"""An optimizer whose state is partitioned across ranks."""

import contextlib
import copy
import functools
import sys
from typing import Any, Self

import numpy as np

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.gradients.buckets import (
    BUCKET_BYTES,
    FIRST_GPU_BUCKET_BYTES,
    GPU_BUCKET_BYTES,
)
from mpchain.distributed.gradients.scattering import Gathering, ScatteringReducer
from mpchain.distributed.optimizers.multi_node import MultiNodeOptimizer, make_reducer
from mpchain.distributed.optimizers.shared_random import all_hooks
from mpchain.distributed.optimizers.slices import PartsOfModel, RanksOfParts, Row
from mpchain.link import Link
from mpchain.optimizer import GradientMethod, Optimizer
from mpchain.optimizer_hooks import GradientClipping
from mpchain.training.progress import print_line
from mpchain.update_rule import UpdateRule
from mpchain.utils.flat_layout import layouts


def create_sharded_optimizer(
    actual_optimizer: Optimizer,
    communicator: Communicator,
    zero_fill: bool = True,
    *,
    whole_gradients: bool = False,
    batch_counts: bool = True,
) -> "ShardedOptimizer":
    """Wraps an optimizer so that its state is partitioned across ranks (ZeRO stage 1).

    Args:
        actual_optimizer: any optimizer whose update rules compute each element separately.
        communicator, zero_fill, batch_counts: see :func:`create_multi_node_optimizer`.
        whole_gradients: whether all ranks get whole gradients, as ``param.grad``. Hosts then send
            50 % more data.

    Example:
        >>> model = L.Linear(2, 1, initialW=0)
        >>> optimizer = mpchain.distributed.create_sharded_optimizer(optimizers.Adam(), comm)
        >>> optimizer = optimizer.setup(model)
        >>> optimizer.update(lambda x: F.mean(model(x)), np.ones((4, 2), np.float32))
        >>> part = optimizer.local_state()["/W"]
        >>> part["start"], part["stop"], sorted(part["state"])
        (0, 2, ['m', 'v'])
    """
    if communicator.micro_shards:
        reducer = make_reducer(communicator, zero_fill)
    else:
        reducer = ScatteringReducer(communicator, zero_fill=zero_fill)
    options = zero_fill, reducer, batch_counts
    optimizer = ShardedOptimizer(actual_optimizer, communicator, *options)
    optimizer.whole_gradients = whole_gradients
    return optimizer


class ShardedOptimizer(MultiNodeOptimizer):
    """A :class:`MultiNodeOptimizer` that divides the optimizer's state among the ranks.

    Parameters are laid out one after another in a row. Each rank holds the state of an equal part
    of that row (including float32 copies of float16 parameters), updates this part, and sends the
    new values to the other ranks. All hooks are supported except a hook of a single parameter
    with timing ``'post'``. A rank gets only the gradients of its part; with the new values,
    the ranks send no more data than a :class:`MultiNodeOptimizer` sends for gradients. The results
    have the same bits, except for norms of gradients, whose last bit may differ. After an update
    ``param.grad`` is None. All ranks get whole gradients instead, and keep them, in each step in
    which a rank has

    * a hook that does not declare that it works on parts of gradients
      (:mod:`mpchain.optimizer_hooks`), or an optimizer that overrides the update of
      :class:`~mpchain.optimizer.GradientMethod`. The reason is printed once;
    * :attr:`whole_gradients`;
    * gradients on a GPU that NCCL does not connect, or a reproducible communicator.

    To save the whole state under its ordinary names, all ranks call :meth:`gather_state` just
    before one of them saves (:class:`mpchain.distributed.extensions.GatherState` does so in a
    trainer). Any number of ranks can load such files, and files of any other optimizer. To save and
    load each rank's part separately, see :meth:`local_state`.

    See S. Rajbhandari et al., ZeRO: memory optimizations toward training trillion parameter models,
    SC 2020, stage 1.

    Attributes:
        whole_gradients: whether all ranks get whole gradients in every step.

    Raises (by :meth:`setup`):
        ValueError: an update rule does not compute each element separately, or overrides
            ``update``; the optimizer's line search needs whole gradients; or see
            :meth:`MultiNodeOptimizer.setup`.

    Example:
        >>> optimizer = mpchain.distributed.create_sharded_optimizer(optimizers.SGD(), comm)
        >>> optimizer = optimizer.setup(L.Linear(3, 2))
        >>> optimizer.local_state()["/W"]["stop"]
        6
    """

    whole_gradients = False

    _reducer: ScatteringReducer

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._rows, self._own_hook, self._has_said_why = [], self._publish, False
        self._connect()

    def _connect(self):
        self._gathering = Gathering(self.communicator)
        self._ranks = RanksOfParts(self.communicator)

    def setup(self, link: Link) -> Self:
        self._rows = []
        if self.actual_optimizer.takes_closure:
            kind = type(self.actual_optimizer).__name__
            raise ValueError(
                f"ShardedOptimizer.setup: {kind} cannot be sharded: its line search needs "
                "whole gradients; use create_multi_node_optimizer"
            )
        super().setup(link)
        _check_rules(dict(link.namedparams()))
        self._add_publisher()
        return self

    def local_state(self) -> dict[str, dict[str, Any]]:
        """Returns the part of the state that this rank holds; does not communicate.

        Returns:
            A dict from the name of each parameter that is initialized and has an update rule to a
            dict with: ``start`` and ``stop`` (int), the range of elements of the flattened (C
            order) parameter whose state this rank holds, possibly empty; ``shape``, the parameter's
            shape; ``t``, the number of its updates; and ``state``, a dict of the rule's states by
            name, empty before the first update: arrays of shape (stop - start,), and values that
            are not arrays of the parameter's shape, unchanged. ``fp32_param`` is the copy that
            :meth:`use_fp32_update` keeps. The ranges of all ranks, in the order of the ranks, make
            up each parameter.
        """
        return {
            name: {
                "start": rule.slice.place.start,
                "stop": rule.slice.place.stop,
                "shape": rule.slice.shape,
                "t": rule.t,
                "state": rule.kept(),
            }
            for name, rule in self._divided()
        }

    def set_local_state(self, parts: dict[str, dict[str, Any]]) -> None:
        """Sets a result of :meth:`local_state`, from this rank or combined from the results of
        other ranks.

        Args:
            parts: a dict like the result of :meth:`local_state`, with the present ranges of this
                rank.

        Raises:
            ValueError: names or ranges differ from the result of :meth:`local_state`.
        """
        divided = dict(self._divided())
        if unlike := divided.keys() ^ parts.keys():
            raise ValueError(
                "ShardedOptimizer.set_local_state: parts must have the names of the model's "
                f"parameters, but differ in {min(unlike)}"
            )
        for name, rule in divided.items():
            part, held = parts[name], (rule.slice.place.start, rule.slice.place.stop)
            if (part["start"], part["stop"]) != held:
                raise ValueError(
                    f"ShardedOptimizer.set_local_state: this rank holds elements {held} of {name}, "
                    f"but parts has elements {part['start'], part['stop']}"
                )
            rule.slice.whole = None
            rule.keep(part["t"], copy.deepcopy(part["state"]))

    def gather_state(self, root: int = 0) -> None:
        """Gathers the whole state at rank ``root``, which can save it until the next update."""
        for _, rule in self._divided():
            rule.slice.gather(rule, self.communicator, root)

    def fit_to_ranks(self) -> None:
        super().fit_to_ranks()
        self._rows = []
        self._connect()
        if self.target is not None:
            for param in self.target.params():
                rule = param.update_rule
                if rule is not None and rule.slice is not None:  # the rule's slice is chosen again
                    rule.slice = None
                    rule.keep(rule.t, {})
            self._divide()

    def _finish(self, observations=None):
        self._add_publisher()  # the wrapped optimizer may have been set up again
        why = self._why_whole()
        self._reducer.asks = self.whole_gradients or why is not None
        self._reducer.needs_norm = self._clips_first()
        try:
            super()._finish(observations)
        finally:
            self._reducer.pieces = None  # gradients are freed with their slices
        if why is not None and not self._has_said_why:
            self._say(why)

    def _step(self, draws_alike):
        pieces = self._reducer.pieces
        if pieces is None:
            super()._step(draws_alike)
            return
        whole, params = self.target, dict(self.target.namedparams(include_uninit=False))
        for row in self._rows:
            params.update(row.parts(pieces, self._ranks))
        self._inner.target = PartsOfModel(whole, params)
        self._ranks.known = self._reducer.square_norm
        try:
            super()._step(draws_alike)
        finally:
            self._inner.target, self._ranks.known = whole, None
            for row in self._rows:
                row.drop_gradients()

    def _clips_first(self):
        """Returns whether a step first sums the squares of the unscaled gradients."""
        assert self._hooks is not None  # setup has created the hooks
        hooks = self._hooks.at("pre")
        has_no_scale = not self.has_dynamic_loss_scale and self._loss_scale in (None, 1)
        return has_no_scale and bool(hooks) and type(hooks[0]) is GradientClipping

    def _why_whole(self):
        """Returns the reason why this rank needs whole gradients in the next step, or None."""
        if overridden := _overridden(type(self._inner)):
            return f"{type(self._inner).__name__} overrides {overridden}"
        for hook in all_hooks(self._inner, self._reducer.params):
            if hook != self._own_hook and not _works_on_parts(hook):
                name = getattr(hook, "__name__", type(hook).__name__)
                return f"hook {name} does not declare that it works on parts of gradients"
        return None

    def _say(self, why):
        if not self._reducer.has_gathered:
            return
        self._has_said_why = True
        if self.communicator.rank == 0:
            print_line(
                f"ShardedOptimizer: all ranks get whole gradients, because {why} "
                "(see mpchain.optimizer_hooks)",
                sys.stderr,
            )

    def _add_publisher(self):
        # This hook runs first after the update, so that all other hooks see the updated parameters.
        with contextlib.suppress(KeyError):  # the hook already exists
            self._inner.add_hook(self._publish, "publish_shards", "post")

    def _divided(self):
        """Yields the name and rule of each parameter whose state is divided."""
        self._divide()
        for name, param in sorted(self.target.namedparams(include_uninit=False)):
            if param.update_rule is not None:
                yield name, param.update_rule

    def _has_new_parameters(self):
        return super()._has_new_parameters() or bool(self._undivided())

    def _replicate(self):
        super()._replicate()
        self._divide()

    def _undivided(self):
        params = self.target.namedparams(include_uninit=False)
        return {name: param for name, param in params if not _is_divided(param)}

    def _divide(self):
        """Divides the parameters that are not divided yet; all ranks have the same ones."""
        new = self._undivided()
        _check_rules(new)
        on_gpu = any(param.xp is not np for param in new.values())
        n_bytes = (GPU_BUCKET_BYTES, FIRST_GPU_BUCKET_BYTES) if on_gpu else (BUCKET_BYTES,)
        # Backward usually computes the gradients of the last links first.
        in_order_of_backward = reversed(new.items())
        self._rows += [
            Row(self.communicator, layout, new)
            for layout in layouts(in_order_of_backward, *n_bytes)
        ]
        params = dict(self.target.namedparams(include_uninit=False))
        self._rows = [row for row in self._rows if row.keep(params)]
        if isinstance(self._reducer, ScatteringReducer):
            self._reducer.layouts = [row.layout for row in self._rows]
            if new:
                self._reducer.watch(self._params())

    def _publish(self, optimizer):
        if self.communicator.size > 1:
            self._gathering.gather(row.piece_and_use() for row in self._rows)


@functools.cache
def _overridden(optimizer_class):
    """Returns the name of an update method that a class overrides; None if there is none."""
    names = (
        "update _update_params reallocate_cleared_grads check_nan_in_grads is_safe_to_update "
        "update_loss_scale call_hooks call_hook rules_and_params"
    ).split()
    methods = {name: getattr(optimizer_class, name, None) for name in names}
    changed = [name for name, x in methods.items() if x is not getattr(GradientMethod, name)]
    return changed[0] if changed else None


def _works_on_parts(hook):
    """Returns whether a hook's own class declares that it works on parts, not only a base class."""
    says = {**vars(type(hook)), **getattr(hook, "__dict__", {})}
    return bool(says.get("works_on_parts"))


def _is_divided(param):
    rule = param.update_rule
    return rule is None or (rule.slice is not None and rule.slice.shape == param.shape)


def _check_rules(params):
    for name, param in params.items():
        rule = param.update_rule
        if rule is not None and not rule.is_elementwise:
            raise ValueError(
                f"create_sharded_optimizer: {type(rule).__name__}, which updates {name}, does "
                "not compute each element separately, so its state cannot be divided: use "
                "create_multi_node_optimizer"
            )
        if rule is not None and type(rule).update is not UpdateRule.update:
            raise ValueError(
                f"create_sharded_optimizer: {type(rule).__name__}, which updates {name}, overrides "
                "update, so that whole parameters would be updated: override update_core instead"
            )
