"""Update rules: how one parameter follows its gradient.

A rule is declared by the names and defaults of its hyperparameters, the names of its states, and
one elementwise step on arrays.
"""

import functools

import numpy as np

from mpchain.backends.cuda import is_gpu_array
from mpchain.kernels.steps import square_sum, take_step
from mpchain.serializer import Deserializer
from mpchain.variable import Parameter

_SMALL = 1024
"""Parameters of up to so many elements are gathered: for them, calls cost more than copies."""

_GATHERED = 1 << 14
"""So many elements are gathered at a time: they stay in the cache, in memory that is used again."""

_TIMINGS = ("auto", "pre", "post")


class Hyperparameter:
    """Values of hyperparameters as attributes; what is not set here is its parent's.

    So an update rule follows its optimizer in all that was not set for the rule itself.

    Args:
        parent (Hyperparameter): where to look for what is not set here.
    """

    def __init__(self, parent=None):
        self._parent = parent

    @property
    def parent(self):
        """The hyperparameters that stand in for those that are not set here, or None."""
        return self._parent

    def __getattr__(self, name):
        parent = self.__dict__.get("_parent")
        if parent is None or name.startswith("_"):
            raise AttributeError(f"there is no hyperparameter {name!r}")
        return getattr(parent, name)

    def get_dict(self):
        """Returns a dict of all values, the parent's included."""
        inherited = {} if self._parent is None else self._parent.get_dict()
        return inherited | {k: v for k, v in self.__dict__.items() if k != "_parent"}

    def __repr__(self):
        values = ", ".join(f"{name}={value}" for name, value in sorted(self.get_dict().items()))
        return f"{type(self).__name__}({values})"


class HyperparameterProxy:
    """Descriptor: an attribute of an optimizer or update rule that is one of its hyperparameters.

    Args:
        attr_name (str): its name.
    """

    def __init__(self, attr_name):
        self._name = attr_name
        self.__doc__ = f"Alias of ``hyperparam.{attr_name}``."

    def __get__(self, owner, cls=None):
        return self if owner is None else getattr(owner.hyperparam, self._name)

    def __set__(self, owner, value):
        setattr(owner.hyperparam, self._name, value)


class HookList:
    """The hooks of an optimizer or update rule: what to call before and after an update."""

    def __init__(self, owner):
        self._owner = type(owner).__name__
        self._by_timing = {"pre": {}, "post": {}}

    def add(self, hook, name, timing):
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
        if any(name in hooks for hooks in self._by_timing.values()):
            raise KeyError(f"{self._owner}.add_hook: hook {name!r} exists already")
        self._by_timing[timing][name] = hook

    def remove(self, name):
        for hooks in self._by_timing.values():
            if name in hooks:
                del hooks[name]
                return
        raise KeyError(f"{self._owner}.remove_hook: there is no hook {name!r}")

    def at(self, timing):
        return tuple(self._by_timing[timing].values())

    def __bool__(self):
        return bool(self._by_timing["pre"] or self._by_timing["post"])


class UpdateRule:
    """How one parameter is updated, with the state that belongs to it.

    A rule is declared by three class attributes; :meth:`init_state` and :meth:`update_core` may be
    overridden instead.

    Args:
        parent_hyperparam (Hyperparameter): the optimizer's; None means the defaults.
        hyperparams: values for this rule only; None leaves the parent's.

    Attributes:
        hyperparameters (dict): names and defaults.
        states (tuple of str): names of the arrays of the parameter's shape that it keeps; they
            start as zeros.
        step: static function of the flat arrays (parameter, gradient, *states) and of what
            :meth:`scalars` returns. It may overwrite parameter and states, not the gradient, and
            returns the new values of parameter and states. It works on each element alone.
        enabled (bool): whether the parameter is updated.
        t (int): the number of updates so far.
        state (dict): the states by name; None before the first update.
        hyperparam (Hyperparameter): the values.
    """

    hyperparameters = {}
    states = ()
    step = None

    def __init__(self, parent_hyperparam=None, **hyperparams):
        if parent_hyperparam is None:
            parent_hyperparam = Hyperparameter()
            vars(parent_hyperparam).update(self.hyperparameters)
        self.hyperparam = Hyperparameter(parent_hyperparam)
        for name, value in hyperparams.items():
            if name not in self.hyperparameters:
                raise TypeError(
                    f"{type(self).__name__}: there is no hyperparameter {name!r}; "
                    f"there are {', '.join(self.hyperparameters)}"
                )
            if value is not None:
                setattr(self.hyperparam, name, value)
        self.enabled = True
        self.t = 0
        self.state = None
        self._hooks = HookList(self)
        self._use_fp32_update = False
        self._fp32_param = None
        self._fitted_array = None  # of the parameter that the state was last found to fit

    @property
    def is_elementwise(self):
        """Whether each element is updated on its own."""
        return self.step is not None

    def add_hook(self, hook, name=None, timing="auto"):
        """Adds a hook for this parameter only.

        Args:
            hook: called with the rule and the parameter.
            name (str): under which it can be removed; None means its own name.
            timing (str): ``'pre'`` or ``'post'`` the update; ``'auto'`` means ``hook.timing``, or
                else ``'pre'``.
        """
        self._hooks.add(hook, name, timing)

    def remove_hook(self, name):
        """Removes the hook of that name."""
        self._hooks.remove(name)

    def use_fp32_update(self, flag=True):
        """Lets float16 parameters be updated on a float32 copy, which is kept."""
        self._use_fp32_update = flag

    def updated_param(self, param):
        """Returns the parameter that hooks and the update act on.

        Returns:
            ``param`` itself, or with :meth:`use_fp32_update` its float32 copy.
        """
        if not self._use_fp32_update or param.dtype != np.float16:
            return param
        if self._fp32_param is None:
            self._fp32_param = Parameter(param.array.astype(np.float32), name=param.name)
            self._fp32_param.divided_among = param.divided_among
        copy = self._fp32_param
        if copy.device != param.device:
            copy.to_device(param.device)
        if copy.grad is None and param.grad is not None:
            copy.grad = param.grad.astype(np.float32)
            # Where somebody else has set the parameter meanwhile, the copy follows.
            is_current = copy.array.astype(param.dtype) == param.array
            copy.array = param.xp.where(is_current, copy.array, param.array)
        return copy

    def update(self, param):
        """Updates a parameter by its gradient; without one, or if not enabled, does nothing."""
        updated = self.updated_param(param)
        if self.enabled and updated.grad is not None:
            self.prepare(updated)
            for hook in self._hooks.at("pre"):
                hook(self, updated)
            self.update_core(updated)
            for hook in self._hooks.at("post"):
                hook(self, updated)
        if updated is not param:
            param.array[...] = updated.array
            updated.cleargrad()

    def prepare(self, param):
        """Counts an update that is about to be made, and sees that the state fits the parameter."""
        self.t += 1
        if self.state is None or self._fitted_array is not param.array:
            self._fit_state(param)

    def _fit_state(self, param):
        """Makes the state, or moves it to where the parameter is."""
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

    def init_state(self, param):
        """Fills :attr:`state` for a parameter that is updated for the first time."""
        # States of float16 parameters are float32: squares of gradients leave float16's range.
        dtype = np.promote_types(param.dtype, np.float32)
        with param.device.create_context():
            for name in self.states:
                self.state[name] = param.xp.zeros_like(param.array, dtype)

    def update_core(self, param):
        """Updates the parameter; calls :meth:`update_core_cpu` or :meth:`update_core_gpu`."""
        if isinstance(param.array, np.ndarray):
            self.update_core_cpu(param)
        else:
            with param.device.create_context():
                self.update_core_gpu(param)

    def update_core_cpu(self, param):
        """Updates a parameter on the host, by :attr:`step`."""
        self._take_step(param)

    def update_core_gpu(self, param):
        """Updates a parameter on a GPU, by :attr:`step`."""
        self._take_step(param)

    def _take_step(self, param):
        if self.step is None:
            raise NotImplementedError(f"{type(self).__name__} does not implement update_core")
        states = [self.state[name] for name in self.states]
        take_step(self.step, param.array, param.grad, states, self.scalars())

    def scalars(self):
        """Returns a dict of the numbers that :attr:`step` takes: the hyperparameters, by name."""
        values = self.hyperparam.get_dict()
        return {name: as_python_number(values[name]) for name in self.hyperparameters}

    def serialize(self, serializer):
        """Saves or restores ``t``, the states and the float32 copy of a float16 parameter."""
        self.t = serializer("t", self.t)
        if not (isinstance(serializer, Deserializer) and serializer.restores):
            for name, value in (self.state or {}).items():
                serializer(name, value)
            if self._fp32_param is not None:
                serializer("fp32_param", self._fp32_param.array)
        elif self.t == 0:
            self.state = None
        else:
            self._restore_state(serializer)

    def _restore_state(self, serializer):
        self._fp32_param = self._fitted_array = None
        state = self.state or dict.fromkeys(self._state_names())
        self.state = {name: serializer(name, value) for name, value in state.items()}
        if any(value is None for value in self.state.values()):
            self.state = None  # the file has none, and lets it start anew
        if self._use_fp32_update:
            copy = if_saved(serializer, "fp32_param", None)
            self._fp32_param = None if copy is None else Parameter(copy)

    def _state_names(self):
        """Names of the states, also of a rule that overrides :meth:`init_state`."""
        if type(self).init_state is UpdateRule.init_state:
            return self.states
        probe = type(self).__new__(type(self))
        vars(probe).update(vars(self), state={})
        probe.init_state(Parameter(np.zeros(1, np.float32)))
        return tuple(probe.state)


def if_saved(serializer, key, value):
    """As ``serializer(key, value)``, but keeps the value where a file (of Chainer) has none."""
    try:
        return serializer(key, value)
    except KeyError:
        return value


def square_sums(params, arrays):
    """Returns the sums of the squares of arrays that belong to parameters, as Python numbers.

    Where a parameter is divided among ranks, they are sums over its parts on all of these, which
    call this together.

    Args:
        params (list of Parameter): the parameters.
        arrays (list): an array for each, such as its gradient; float16 does not overflow.
    """
    sums = np.array([square_sum(array) for array in arrays])
    divided = {}
    for i, param in enumerate(params):
        if param.divided_among is not None:
            divided.setdefault(param.divided_among, []).append(i)
    for comm, places in divided.items():
        sums[places] = comm.iallreduce(sums[places]).Wait()
    return sums.tolist()


def as_python_number(value):
    """Returns a NumPy scalar as a Python number, which leaves the dtype of arrays as it is."""
    return value.item() if isinstance(value, np.generic) else value


def update_all(params):
    """Updates parameters, as if by their ``update`` methods one after the other.

    Small ones whose rules take the same step with the same numbers are copied into flat buffers,
    updated in one call and copied back. So nobody sees more of it than the time that it saves:
    parameters and states stay the arrays that they are, and get the same values, to the bit.
    """
    groups = {}
    for param in params:
        key = _group_of(param)
        if key is None:
            param.update()
        else:
            groups.setdefault(key, []).append(param)
    for group in groups.values():
        for portion in _portions(group):
            _update_group(portion)


def _portions(params):
    """Yields the parameters in lists of at most ``_GATHERED`` elements."""
    portion, size = [], 0
    for param in params:
        n = param.array.size
        if size + n > _GATHERED:
            yield portion
            portion, size = [], 0
        portion.append(param)
        size += n
    yield portion


def _group_of(param):
    """Returns what parameters have in common that are updated together; None for others."""
    array, grad, rule = param.array, param.grad, param.update_rule
    if (
        type(array) is not np.ndarray
        or array.size > _SMALL
        or array.dtype.char not in "fd"
        or type(grad) is not np.ndarray
        or grad.dtype is not array.dtype
        or not _takes_plain_steps(type(param), type(rule))
        or not rule.enabled
        or rule._hooks
        or len(vars(rule.hyperparam)) > 1  # has values that are not its parent's
    ):
        return None
    key = type(rule), id(rule.hyperparam.parent), rule.t, array.dtype.char
    if len(vars(rule)) > len(_ATTRIBUTES):  # on which the numbers of a step may depend, too
        key += tuple((name, id(x)) for name, x in vars(rule).items() if name not in _ATTRIBUTES)
    return key


@functools.cache
def _takes_plain_steps(param_class, rule_class):
    """Returns whether parameters and rules of these classes update as declared, by ``step``."""
    names = ("update", "update_core", "update_core_cpu", "_take_step", "updated_param")
    return (
        param_class.update is Parameter.update
        and getattr(rule_class, "step", None) is not None
        and all(getattr(rule_class, name) is getattr(UpdateRule, name) for name in names)
    )


_ATTRIBUTES = frozenset(vars(UpdateRule()))


def _update_group(params):
    if len(params) == 1:
        params[0].update()
        return
    rules = [param.update_rule for param in params]
    for rule, param in zip(rules, params, strict=True):
        rule.prepare(param)
    written = [[param.array for param in params]]
    written += [[rule.state[name] for rule in rules] for name in rules[0].states]
    flat = [_gathered(arrays) for arrays in written]
    grad = _gathered([param.grad for param in params])
    take_step(rules[0].step, flat[0], grad, flat[1:], rules[0].scalars())
    for arrays, values in zip(written, flat, strict=True):
        start = 0
        for array in arrays:
            stop = start + array.size
            array[...] = values[start:stop].reshape(array.shape)
            start = stop


def _gathered(arrays):
    return np.concatenate([array.reshape(-1) for array in arrays])
