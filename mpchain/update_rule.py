"""Update rules: how one parameter follows its gradient.

A rule is declared by the names and defaults of its hyperparameters, the names of its states, and
one elementwise step on arrays.
"""

import numpy as np

from mpchain.backends.cuda import is_gpu_array
from mpchain.serializer import Deserializer
from mpchain.variable import Parameter

_BLOCK_BYTES = 1 << 16
"""A step works through larger host arrays in blocks of this size, which stay in the cache."""

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
        copy = self._fp32_param
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
            self.t += 1
            if self.state is None or self._fitted_array is not updated.array:
                self._fit_state(updated)
            for hook in self._hooks.at("pre"):
                hook(self, updated)
            self.update_core(updated)
            for hook in self._hooks.at("post"):
                hook(self, updated)
        if updated is not param:
            param.array[...] = updated.array
            updated.cleargrad()

    def _fit_state(self, param):
        """Makes the state, or moves it to where the parameter is."""
        if self.state is None:
            self.state = {}
            self.init_state(param)
        for name, value in self.state.items():
            if isinstance(value, np.ndarray) or is_gpu_array(value):
                self.state[name] = param.device.send(value)
        for name in self.states:
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
        """Saves or restores ``t`` and the states."""
        self.t = serializer("t", self.t)
        if not isinstance(serializer, Deserializer):
            for name, value in (self.state or {}).items():
                serializer(name, value)
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

    def _state_names(self):
        """Names of the states, also of a rule that overrides :meth:`init_state`."""
        if type(self).init_state is UpdateRule.init_state:
            return self.states
        probe = type(self).__new__(type(self))
        vars(probe).update(vars(self), state={})
        probe.init_state(Parameter(np.zeros(1, np.float32)))
        return tuple(probe.state)


def as_python_number(value):
    """Returns a NumPy scalar as a Python number, which leaves the dtype of arrays as it is."""
    return value.item() if isinstance(value, np.generic) else value


def take_step(step, param, grad, states, scalars):
    """Applies an elementwise step to arrays in place.

    Args:
        step: see :class:`UpdateRule`.
        param, grad, states: the arrays, all of one shape; ``grad`` is not changed.
        scalars (dict): further arguments of ``step``.
    """
    n = _BLOCK_BYTES // param.itemsize
    written = [param, *states]
    if (
        not isinstance(param, np.ndarray)
        or param.size <= n
        or not all(array.flags.c_contiguous for array in written)
    ):
        _step_once(step, written, grad, scalars)
        return
    flat = [array.reshape(-1) for array in written]
    grad = grad.reshape(-1)
    for start in range(0, param.size, n):
        block = slice(start, start + n)
        _step_once(step, [array[block] for array in flat], grad[block], scalars)


def _step_once(step, written, grad, scalars):
    param, *states = written
    if grad.dtype == np.float16:
        grad = grad.astype(np.float32)
    for array, value in zip(written, step(param, grad, *states, **scalars), strict=True):
        if value is not array:
            array[...] = value
