"""Update rules, each of which updates one parameter with its gradient.

A rule is declared by the names and defaults of its hyperparameters, the names of its states, and
one elementwise step on arrays.
"""

import copy
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from mpchain.backends.cuda import get_array_module, is_gpu_array
from mpchain.backends.dtypes import is_half
from mpchain.kernels.steps import square_sums as sums_of_squares
from mpchain.kernels.steps import take_step, take_steps
from mpchain.row_gradients import RowGradient, row_gradient_of
from mpchain.serializer import AbstractSerializer, Deserializer
from mpchain.typing import Array
from mpchain.variable import Parameter

_TIMINGS = ("auto", "pre", "post")


class Hyperparameter:
    """Values of hyperparameters as attributes; values that are not set in this object come from the
    parent.

    An update rule therefore uses its optimizer's value of each hyperparameter that the rule does
    not set.

    Args:
        parent: the hyperparameters that provide values that are not set in this object.

    Raises:
        TypeError: an attribute is set to a string.

    Example:
        >>> optimizer = optimizers.SGD(lr=0.1)
        >>> hyperparam = mpchain.optimizer.Hyperparameter(optimizer.hyperparam)
        >>> optimizer.lr = 0.2
        >>> hyperparam.lr, hyperparam.get_dict()
        (0.2, {'lr': 0.2})
    """

    def __init__(self, parent: "Hyperparameter | None" = None):
        self._parent = parent

    @property
    def parent(self) -> "Hyperparameter | None":
        """The hyperparameters that provide values that are not set in this object; None if there is
        no parent."""
        return self._parent

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, str):
            raise TypeError(f"hyperparameter {name!r} must be a number, not the string {value!r}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        parent = self.__dict__.get("_parent")
        if parent is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no hyperparameter {name!r}")
        return getattr(parent, name)

    def get_dict(self) -> dict[str, Any]:
        """Returns a dict of all values, including the parent's."""
        values = {} if self._parent is None else self._parent.get_dict()
        values.update(self.__dict__)
        values.pop("_parent", None)
        return values

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in sorted(self.get_dict().items()))
        return f"{type(self).__name__}({values})"


class HyperparameterProxy:
    """Descriptor: an attribute that gets and sets a hyperparameter of an optimizer or update rule.

    Args:
        attr_name: the name of the hyperparameter.

    Example:
        >>> class WithRate:
        ...     rate = mpchain.optimizer.HyperparameterProxy("lr")
        ...     hyperparam = optimizers.SGD(lr=0.5).hyperparam
        >>> WithRate().rate
        0.5
    """

    def __init__(self, attr_name: str):
        self._name = attr_name
        self.__doc__ = f"Alias of ``hyperparam.{attr_name}``."

    def __get__(self, owner: Any, cls: type | None = None) -> Any:
        return self if owner is None else getattr(owner.hyperparam, self._name)

    def __set__(self, owner: Any, value: Any) -> None:
        setattr(owner.hyperparam, self._name, value)


class HookList(dict[str, tuple[str, Callable[..., Any]]]):
    """The hooks of an optimizer or update rule, by name; each hook has a timing.

    Example:
        >>> hooks = mpchain.update_rule.HookList(optimizers.SGD())
        >>> hooks.add(print, None, "post")
        >>> hooks.at("post"), bool(hooks)
        ((<built-in function print>,), True)
    """

    def __init__(self, owner: object):
        self._owner = type(owner).__name__

    def add(self, hook: Callable[..., Any], name: str | None, timing: str) -> None:
        if not callable(hook):
            raise TypeError(
                f"{self._owner}.add_hook: hook must be callable, not {type(hook).__name__}"
            )
        if timing not in _TIMINGS:
            raise ValueError(
                f"{self._owner}.add_hook: timing must be one of {', '.join(_TIMINGS)}, "
                f"not {timing!r}"
            )
        if timing == "auto":
            timing = getattr(hook, "timing", "pre")
        if name is None:
            name = getattr(hook, "name", None) or getattr(hook, "__name__", type(hook).__name__)
        if name in self:
            raise KeyError(f"{self._owner}.add_hook: hook {name!r} exists already")
        self[name] = timing, hook

    def remove(self, name: str) -> None:
        if name not in self:
            raise KeyError(f"{self._owner}.remove_hook: there is no hook {name!r}")
        del self[name]

    def at(self, timing: str) -> tuple[Callable[..., Any], ...]:
        return tuple([hook for when, hook in self.values() if when == timing]) if self else ()


class UpdateRule:
    """Updates one parameter, and holds the state of the parameter.

    A rule is declared by three class attributes; :meth:`init_state` and :meth:`update_core` may be
    overridden instead.

    Args:
        parent_hyperparam: the optimizer's hyperparameters; None means the defaults.
        values, hyperparams: values for this rule only, in the order of :attr:`hyperparameters` or
            by name; None means the parent's value.

    Attributes:
        hyperparameters: names and defaults.
        states: names of the arrays of the parameter's shape that the rule keeps; they start as
            zeros.
        step: static function of the flat arrays (parameter, gradient, *states) and of the values
            from :meth:`scalars`. The function may overwrite the parameter and the states, but not
            the gradient, and returns the new values of the parameter and the states. It treats each
            element independently.
        scalars_depend_on: names of the attributes that :meth:`scalars` reads besides ``hyperparam``
            and ``t``. Rules of one class whose attributes of these names are the same objects take
            one step together, which is faster if there are many rules. A derived class does not
            inherit the names and must declare them itself. None, the default, makes the rules of a
            class whose :meth:`scalars` is not the base's take their steps one by one.
        enabled: whether the parameter is updated.
        t: the number of updates so far.
        state: the states by name; None before the first update.
        slice: the elements of the parameter that this rule updates, if a sharded optimizer divides
            the states among ranks (``mpchain/distributed/optimizers/slices.py``); None means all.
        hyperparam: the values of the hyperparameters.

    Example:
        >>> class SignRule(mpchain.UpdateRule):
        ...     hyperparameters = {"lr": 0.5}
        ...     step = staticmethod(lambda p, g, lr: (p - lr * np.sign(g),))
        >>> param = mpchain.Parameter(np.ones(2))
        >>> param.grad = np.array([3.0, -4.0])
        >>> SignRule().update(param); param.array
        array([0.5, 1.5])
    """

    hyperparameters: dict[str, Any] = {}
    states: tuple[str, ...] = ()
    step: Callable[..., tuple[Array, ...]] | None = None
    scalars_depend_on: tuple[str, ...] | None = None
    slice: Any = None

    def __init__(
        self, parent_hyperparam: Hyperparameter | None = None, *values: Any, **hyperparams: Any
    ):
        if parent_hyperparam is None:
            parent_hyperparam = Hyperparameter()
            vars(parent_hyperparam).update(self.hyperparameters)
        self.hyperparam = Hyperparameter(parent_hyperparam)
        if len(values) > len(self.hyperparameters):
            raise TypeError(
                f"{type(self).__name__} has {len(self.hyperparameters)} hyperparameters, but got "
                f"{len(values)} values"
            )
        for name, value in [*zip(self.hyperparameters, values), *hyperparams.items()]:
            if name not in self.hyperparameters:
                raise TypeError(
                    f"{type(self).__name__} has no hyperparameter {name!r}; "
                    f"it has {', '.join(self.hyperparameters)}"
                )
            if value is not None:
                setattr(self.hyperparam, name, value)
        self.enabled = True
        self.t = 0
        self.state: Any = None
        self._hooks = HookList(self)
        self._use_fp32_update = False
        self._fp32_param = None
        # This is the parameter's array at the last check that the state fits the array.
        self._fitted_array = None

    @property
    def is_elementwise(self) -> bool:
        """Whether each element of the parameter is updated independently."""
        return self.step is not None

    def add_hook(
        self, hook: Callable[..., Any], name: str | None = None, timing: str = "auto"
    ) -> None:
        """Adds a hook for this parameter only.

        Args:
            hook: a callable with the rule and the parameter as its arguments.
            name: the name by which :meth:`remove_hook` removes the hook; None means the hook's own
                name.
            timing: ``'pre'`` to call the hook before the update, or ``'post'`` after it; ``'auto'``
                means ``hook.timing`` if the hook has this attribute, else ``'pre'``.
        """
        self._hooks.add(hook, name, timing)

    def remove_hook(self, name: str) -> None:
        """Removes the hook that has the given name."""
        self._hooks.remove(name)

    def hooks_at(self, timing: str) -> tuple[Callable[..., Any], ...]:
        """Returns the hooks that are called before (``'pre'``) or after (``'post'``) the update."""
        return self._hooks.at(timing)

    def use_fp32_update(self, flag: bool = True) -> None:
        """Chooses whether float16 and bfloat16 parameters are updated using float32 copies, which
        the rule keeps."""
        self._use_fp32_update = flag

    def updated_param(self, param: Parameter) -> Parameter:
        """Returns the parameter that hooks and the update act on.

        Returns:
            ``param`` itself, or its float32 copy if :meth:`use_fp32_update` was called and
            ``param`` is float16 or bfloat16.
        """
        if not self._use_fp32_update or not is_half(param.dtype):
            return param
        copy = self.copy_of(param)
        if copy.grad is None and param.grad is not None:
            copy.grad = param.grad.astype(np.float32)
            _take_values_of_others(copy.array, param.array)
        return copy

    def copy_of(self, param: Parameter) -> Parameter:
        """Returns the float32 copy of a half-precision parameter, on its device."""
        if self.slice is not None and not self.slice.is_own(param):
            return self.slice.copy_of(self, param)
        if self._fp32_param is None:
            self._fp32_param = Parameter(param.array.astype(np.float32), name=param.name)
        self._fp32_param.divided_among = param.divided_among
        if self._fp32_param.device != param.device:
            self._fp32_param.to_device(param.device)
        return self._fp32_param

    def update(self, param: Parameter) -> None:
        """Updates a parameter with its gradient; changes nothing if the parameter has no gradient,
        or if the rule is not enabled."""
        if self.slice is not None:
            self.slice.update(self, param)
            return
        updated = self.updated_param(param)
        if self.enabled and updated.grad is not None:
            self.prepare(updated)
            for hook in self.hooks_at("pre"):
                hook(self, updated)
            self.update_core(updated)
            for hook in self.hooks_at("post"):
                hook(self, updated)
            if updated is not param:
                param.array[...] = updated.array
        if updated is not param:
            updated.cleargrad()

    def prepare(self, param: Parameter) -> None:
        """Increments the number of updates, and prepares the state for an update of the
        parameter."""
        self.t += 1
        if self.state is None or self._fitted_array is not param.array:
            self._fit_state(param)

    def _fit_state(self, param):
        """Creates the state, or moves an existing state to the parameter's device."""
        if self.state is None:
            self.state = {}
            self.init_state(param)
        for name, value in self.state.items():
            if isinstance(value, np.ndarray) or is_gpu_array(value):
                self.state[name] = param.device.send(value)
        dtype = np.promote_types(param.dtype, np.float32)
        for name in self.states:
            self.state[name] = self.state[name].astype(dtype, copy=False)
            if self.state[name].shape != param.shape:
                raise ValueError(
                    f"{type(self).__name__}: state {name!r} has shape {self.state[name].shape}, "
                    f"but the parameter {param.name!r} has shape {param.shape}"
                )
        self._fitted_array = param.array

    def init_state(self, param: Parameter) -> None:
        """Fills :attr:`state` before the first update of a parameter."""
        # States of float16 parameters are float32, because squared gradients exceed float16's
        # range.
        dtype = np.promote_types(param.dtype, np.float32)
        with param.device.create_context():
            for name in self.states:
                self.state[name] = param.xp.zeros_like(param.array, dtype)

    def update_core(self, param: Parameter) -> None:
        """Updates the parameter; calls :meth:`update_core_cpu` or :meth:`update_core_gpu`."""
        if isinstance(param.array, np.ndarray):
            self.update_core_cpu(param)
        else:
            with param.device.create_context():
                self.update_core_gpu(param)

    def update_core_cpu(self, param: Parameter) -> None:
        """Updates a parameter on the host, using :attr:`step`."""
        self._take_step(param)

    def update_core_gpu(self, param: Parameter) -> None:
        """Updates a parameter on a GPU, using :attr:`step`."""
        self._take_step(param)

    def _take_step(self, param):
        if self.step is None:
            raise NotImplementedError(f"{type(self).__name__} does not implement update_core")
        states = [self.state[name] for name in self.states]
        take_step(self.step, param.array, param.grad, states, self._scalars_after)

    def _scalars_after(self, n_left_out=0):
        """Returns the scalars of a step if ``n_left_out`` of the counted updates were skipped."""
        if n_left_out == 0:
            return self.scalars()
        self.t -= n_left_out
        scalars = self.scalars()
        self.t += n_left_out
        return scalars

    def scalars(self) -> dict[str, Any]:
        """Returns a dict of the scalars that :attr:`step` takes: the hyperparameters, by name."""
        values = self.hyperparam.get_dict()
        return {name: as_python_number(values[name]) for name in self.hyperparameters}

    def kept(self) -> dict[str, Any]:
        """Returns the arrays that are kept between updates, by their names in files: the states,
        and the float32 copy of a half-precision parameter."""
        copy = {} if self._fp32_param is None else {"fp32_param": self._fp32_param.array}
        return (self.state or {}) | copy

    def keep(self, t: int, kept: dict[str, Any]) -> None:
        """Sets the number of updates, and the arrays that :meth:`kept` returned."""
        self.t, self.state = t, {k: x for k, x in kept.items() if k != "fp32_param"} or None
        self._fp32_param = Parameter(kept["fp32_param"]) if "fp32_param" in kept else None
        self._fitted_array = None

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores ``t``, the states, and the float32 copy if :meth:`use_fp32_update` was
        called and the parameter is in half precision."""
        loads = isinstance(serializer, Deserializer)
        if loads:
            serializer.remember(self)
            if self.slice is not None:
                # The arrays in files have other shapes than the states of a slice.
                self.keep(self.t, {})
        self.t = serializer("t", self.t)
        if not (loads and serializer.restores):
            for name, value in self.kept().items():
                if self.slice is None:
                    serializer(name, value)
                else:
                    self.slice.save(serializer, name, value)
        elif self.t == 0:
            self.state = None
        else:
            self._restore_state(serializer)
        if loads and self.slice is not None:
            self.slice = self.slice.again(self)

    def _restore_state(self, serializer):
        self._fp32_param = self._fitted_array = None
        state = self.state or dict.fromkeys(self._state_names())
        self.state = {name: serializer(name, value) for name, value in state.items()}
        if any(value is None for value in self.state.values()):
            self.state = None  # The file lacks a state, so all states start from zeros.
        if self._use_fp32_update:
            saved = if_saved(serializer, "fp32_param", None)
            self._fp32_param = None if saved is None else Parameter(saved)

    def _state_names(self):
        """Returns the names of the states, including those of a rule that overrides
        :meth:`init_state`."""
        if type(self).init_state is UpdateRule.init_state:
            return self.states
        probe = copy.copy(self)
        probe.state = {}
        probe.init_state(Parameter(np.zeros(1, np.float32)))
        return tuple(probe.state)


def if_saved(serializer: AbstractSerializer, key: str, value: object) -> Any:
    """Returns ``serializer(key, value)``, or ``value`` if a file, such as a file of Chainer, lacks
    the entry.

    Example:
        >>> if_saved(mpchain.serializers.NpzDeserializer({}), "scale", 2.0)
        2.0
    """
    try:
        return serializer(key, value)
    except KeyError:
        return value


def square_sums(params: Sequence[Parameter], arrays: Sequence[Array]) -> Array:
    """Returns the sums of the squares of arrays that belong to parameters, as a float64 array
    (n_params,) on the host or on the GPU of the arrays.

    For a parameter that is divided among ranks, the sum includes the parts on all of these ranks.
    The ranks must call this function together.

    Args:
        params: the parameters.
        arrays: an array for each parameter, such as its gradient. The squares of float16 arrays do
            not overflow.

    Example:
        >>> square_sums([mpchain.Parameter(np.zeros(2))], [np.array([3.0, 4.0])])
        array([25.])
    """
    sums = sums_of_squares(arrays)
    for comm, places in _places_by_ranks(params).items():
        if comm is not None:
            sums[places] = comm.iallreduce(sums[places]).Wait()
    return sums


def square_norm(params: Sequence[Parameter], arrays: Sequence[Array]) -> Any:
    """Returns the total of :func:`square_sums`, as a float for arrays on the host or as a float64
    GPU array of shape ().

    The ranks exchange a single number for all parameters that are divided among them.

    Args:
        params, arrays: see :func:`square_sums`.

    Example:
        >>> params = [mpchain.Parameter(np.zeros(2)), mpchain.Parameter(np.zeros(1))]
        >>> square_norm(params, [np.array([3.0, 4.0]), np.array([2.0])])
        29.0
    """
    sums, places_by_ranks = sums_of_squares(arrays), _places_by_ranks(params)
    if not places_by_ranks.keys() - {None}:
        return _total(sums)
    totals = []
    for comm, places in places_by_ranks.items():
        own = _total(sums[places])
        if comm is not None:
            own = comm.iallreduce(get_array_module(sums).stack([own])).Wait()[0]
        totals.append(own)
    return sum(totals)


def _places_by_ranks(params):
    """Returns the indices of parameters, grouped by the communicator whose ranks divide the
    parameters; the key None is for parameters that are not divided."""
    places = {}
    for i, param in enumerate(params):
        places.setdefault(param.divided_among, []).append(i)
    return places


def _total(sums):
    return math.fsum(sums) if isinstance(sums, np.ndarray) else sums.sum()


def as_python_number(value: object) -> Any:
    """Converts a NumPy scalar to a Python number, because arithmetic with a Python number keeps the
    dtype of arrays.

    Example:
        >>> as_python_number(np.float64(0.5))
        0.5
    """
    return value.item() if isinstance(value, np.generic) else value


def update_all(params: Iterable[Parameter], inverse: Array | float | None = None) -> None:
    """Updates parameters, with the same bits as calls of their ``update`` methods.

    Args:
        params: the parameters.
        inverse: a factor on the gradients of parameters for which :func:`is_unscaled_in_step` is
            True, a number or a float32 array (); None means 1.

    Parameters whose rules take the same step with the same scalars are updated together, which
    takes less time (:func:`mpchain.kernels.steps.take_steps`). Parameters and states stay the same
    array objects.

    Example:
        >>> model = L.Linear(1, 1, initialW=2.0)
        >>> _ = optimizers.SGD(lr=1).setup(model)
        >>> model.W.grad = np.ones((1, 1), np.float32)
        >>> update_all(model.params()); model.W.array
        array([[1.]], dtype=float32)
    """
    groups, of_rows = {}, {}
    for param in params:
        if row_gradient_of(param) is not None and (key := _group_of_rows(param)) is not None:
            if key not in of_rows:
                of_rows[key] = [] if _changes_rows_alone(param.update_rule) else None
            if of_rows[key] is not None:
                of_rows[key].append(param)
                continue
        key = _group_of(param)
        if key is None:
            param.update()
        else:
            groups.setdefault(key, []).append(param)
    for group in filter(None, of_rows.values()):
        _update_rows(group)
    for group in groups.values():
        if type(group[0].array) is np.ndarray:
            _update_group(group)
        else:
            with group[0].device.create_context():
                _update_group(group, inverse)


def is_unscaled_in_step(param: Parameter) -> bool:
    """Returns whether the kernel that updates a parameter reads its half-precision gradient and can
    multiply the gradient by a factor.

    Example:
        >>> is_unscaled_in_step(mpchain.Parameter(np.zeros(2)))  # the array is in host memory
        False
    """
    rule = param.update_rule
    return (
        is_gpu_array(param.array)
        and is_half(param.dtype)
        and rule is not None
        and rule._use_fp32_update
        and rule.slice is None
        and param.divided_among is None
        and (rule._fp32_param is None or rule._fp32_param.grad is None)
        and row_gradient_of(param) is None
        and _group_of(param) is not None
    )


def leaves_zero_gradients(condition: Callable[..., bool]) -> Callable[[Callable], Callable]:
    """Decorator that declares that a step changes nothing where the gradient is zero.

    With such a step, a table whose gradient has few nonzero rows
    (:func:`mpchain.functions.embed_id`) is updated only in these rows, with the same bits.

    Args:
        condition: function that gets the step's scalars as keyword arguments, and returns whether a
            step with these scalars has the property.

    Example:
        >>> optimizers.SGD.rule.step.leaves_zero_gradients(lr=0.1)
        True
    """

    def mark(step):
        step.leaves_zero_gradients = condition
        return step

    return mark


def _group_of_rows(param):
    """Returns the key of the group with which a parameter is updated in the rows of its gradient;
    None if its update may change other rows, whatever the scalars of its rule."""
    rule = param.update_rule
    if (
        not hasattr(getattr(rule, "step", None), "leaves_zero_gradients")
        or not takes_plain_steps(type(param), type(rule))
        or not _takes_declared_steps(rule)
        or rule.slice is not None
        or param.divided_among is not None
        or param.array.dtype.char not in "fd"
    ):
        return None
    attributes = _read_by_scalars(type(param), type(rule))
    if attributes is None or len(rule.hyperparam.__dict__) > 1:
        return id(param)
    return _key_of_rule(rule, attributes, param.array.dtype)


def _changes_rows_alone(rule):
    """Returns whether a step with the rule's scalars leaves rows without a gradient unchanged."""
    return rule.step.leaves_zero_gradients(**rule.scalars())


def _update_rows(params):
    """Updates parameters of one group in the rows of their gradients."""
    rules = [param.update_rule for param in params]
    gradients = [cast(RowGradient, row_gradient_of(param)) for param in params]
    for rule, param in zip(rules, params, strict=True):
        rule.prepare(param)
    written = [[param.array for param in params]]
    written += [[rule.state[name] for rule in rules] for name in rules[0].states]
    rows = [[array.take(g.ids, 0) for array, g in zip(arrays, gradients)] for arrays in written]
    take_steps(rules[0].step, rows, [g.rows for g in gradients], rules[0]._scalars_after)
    for arrays, new in zip(written, rows, strict=True):
        for array, g, values in zip(arrays, gradients, new, strict=True):
            _put_rows(array, g.ids, values)


def _put_rows(array, ids, rows):
    """Computes ``array[ids] = rows``; many rows take half the time as elements of a view."""
    if rows.size < 1 << 12 or not (array.flags.c_contiguous and rows.flags.c_contiguous):
        array[ids] = rows
    else:
        row = f"V{rows.nbytes // len(ids)}"
        array.reshape(-1).view(row).put(ids, rows.reshape(-1).view(row))


def _take_values_of_others(copy, half):
    """Updates the elements of a float32 copy whose half-precision elements other code has
    changed."""
    rounded = copy.astype(half.dtype)
    if type(half) is np.ndarray and np.array_equal(rounded.view(np.uint16), half.view(np.uint16)):
        return  # The comparison of bits takes a tenth of the time of the comparison of values.
    copy[...] = get_array_module(half).where(rounded == half, copy, half)


def _takes_declared_steps(rule):
    """Returns whether a rule is enabled and has neither hooks nor attributes that change the steps
    of its class."""
    return rule.enabled and not rule._hooks and _DECLARED.isdisjoint(rule.__dict__)


def _group_of(param):
    """Returns the key of the group with which a parameter is updated; None if the parameter is
    updated alone."""
    array, grad, rule = param.array, param.grad, param.update_rule
    attributes = _read_by_scalars(type(param), type(rule))
    kind, dtype = type(array), array.dtype
    if (
        attributes is None
        or type(grad) is not kind
        or grad.dtype != dtype
        or not _takes_declared_steps(rule)
        # Some values of the rule differ from the parent's values.
        or len(rule.hyperparam.__dict__) > 1
        # The rule updates a slice of this parameter.
        or (rule.slice is not None and param.divided_among is None)
    ):
        return None
    key = _key_of_rule(rule, attributes, dtype)
    if kind is np.ndarray:
        return key if dtype.char in "fd" else None
    return _group_on_gpu(key, array, rule) if is_gpu_array(array) else None


def _key_of_rule(rule, attributes, dtype):
    """Returns what rules must have in common that take their steps together."""
    key = type(rule), rule.states, id(rule.hyperparam._parent), rule.t, dtype.char
    for name in attributes:
        key += (id(getattr(rule, name)),)
    return key


def _group_on_gpu(key, array, rule):
    char, key = array.dtype.char, (*key, array.device.id)
    if char in "eE" and rule._use_fp32_update:
        copy = rule._fp32_param
        return *key, "copies", copy is not None and copy.grad is not None
    return key if char in "efd" else None


@functools.cache
def _read_by_scalars(param_class, rule_class):
    """Returns the names of the attributes on which the scalars of rules depend; None for rules that
    are updated one by one."""
    if not takes_plain_steps(param_class, rule_class):
        return None
    if rule_class.scalars is UpdateRule.scalars:
        return ()
    return vars(rule_class).get("scalars_depend_on")


_STEPS = "update update_core update_core_cpu update_core_gpu _take_step updated_param".split()
_DECLARED = frozenset([*_STEPS, "step", "scalars", "hyperparameters"])
"""Names of attributes that classes declare. A rule whose instance sets such an attribute is updated
alone."""


@functools.cache
def takes_plain_steps(param_class: type, rule_class: type) -> bool:
    """Returns whether rules of ``rule_class`` update parameters of ``param_class`` by the declared
    ``step`` alone."""
    return (
        param_class.update is Parameter.update
        and getattr(rule_class, "step", None) is not None
        and all(getattr(rule_class, name) is getattr(UpdateRule, name) for name in _STEPS)
    )


def takes_guarded_steps(param: Parameter, rule: UpdateRule | None) -> bool:
    """Returns whether a GPU can decide if ``rule`` updates ``param``, which requires that the rule
    only takes declared steps.

    Example:
        >>> takes_guarded_steps(mpchain.Parameter(np.zeros(2)), optimizers.Adam.rule())
        True
    """
    if rule is None or not takes_plain_steps(type(param), type(rule)):
        return False
    return rule.enabled and not rule._hooks and rule.slice is None


def _update_group(params, inverse=None):
    """Updates parameters, or the float32 copies of half-precision parameters, together."""
    rules, updated, halves = [param.update_rule for param in params], params, []
    if rules[0]._use_fp32_update and is_half(params[0].dtype):
        updated = [rule.copy_of(param) for rule, param in zip(rules, params, strict=True)]
        halves = [param.array for param in params]
    for rule, param in zip(rules, updated, strict=True):
        rule.prepare(param)
    written = [[param.array for param in updated]]
    written += [[rule.state[name] for rule in rules] for name in rules[0].states]
    # Copies have gradients if hooks have replaced them.
    are_read = halves and updated[0].grad is None
    grads = [x.grad for x in (params if are_read else updated)]
    factor = inverse if are_read else None
    take_steps(rules[0].step, written, grads, rules[0]._scalars_after, halves, factor)
    if halves:
        for copy in updated:
            copy.cleargrad()
