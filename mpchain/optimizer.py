"""Optimizers: objects that update the parameters of a link.

A :class:`GradientMethod` gives each parameter of its target an :class:`UpdateRule`, which holds the
state of the parameter, such as the momentum.
"""

import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mpchain import annexes
from mpchain.backends.dtypes import is_half
from mpchain.from_pytorch import OPTIONS, check_arguments, with_names
from mpchain.kernels.steps import is_plain_on_gpu, multiply_all, share_gpu
from mpchain.link import Link
from mpchain.observers import current, outside, shown_parts, span
from mpchain.row_gradients import has_gradient, refuse_large_tables
from mpchain.serializer import AbstractSerializer
from mpchain.update_rule import (
    HookList,
    if_saved,
    is_unscaled_in_step,
    takes_guarded_steps,
    update_all,
)
from mpchain.update_rule import Hyperparameter as Hyperparameter
from mpchain.update_rule import HyperparameterProxy as HyperparameterProxy
from mpchain.update_rule import UpdateRule as UpdateRule
from mpchain.variable import Parameter, Variable

_on_gpu = annexes.find("gpu_kernels", "kernels.gpu.loss_scale")
_LARGEST_SCALE = 65504.0  # the largest number in float16
_OF_LOSS_SCALE = ("check_nan_in_grads", "is_safe_to_update", "update_loss_scale")


@with_names("Optimizer")
class Optimizer:
    """Base of optimizers.

    Attributes:
        target: the link that the optimizer updates; None before :meth:`setup`.
        t: the number of updates so far, including skipped steps.
        epoch: the number of calls of :meth:`new_epoch`.
        use_auto_new_epoch: whether an updater, not the program, calls :meth:`new_epoch`.
        n_samples: the number of samples in the next update, which updaters set.
        communicator: the communicator of the ranks that update together; None in one process.
        hyperparam: values for all parameters whose rules do not set their own; None if the
            optimizer has no hyperparameters.

    Example:
        >>> model = L.Linear(1, 1, initialW=2.0, nobias=True)
        >>> optimizer = optimizers.SGD(lr=0.1).setup(model)
        >>> optimizer.update(lambda x: F.sum(model(x)), np.ones((1, 1), np.float32))
        >>> optimizer.t, model.W.array
        (1, array([[1.9]], dtype=float32))
    """

    target: Any = None
    t = 0
    epoch = 0
    use_auto_new_epoch = False
    n_samples: int | None = None
    communicator: Any = None
    hyperparam: Hyperparameter | None = None
    takes_closure = False  # If True, a step computes the loss several times.
    _loss_scale: float | None = None
    # A dynamic loss scale is multiplied by this factor after a step with finite gradients.
    _loss_scale_growth: float | None = None
    _is_safe = True
    scale_on_gpu: Any = None  # This is a LossScaleOnGpu if a GPU holds the loss scale.
    _hooks: HookList | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Constructors with a signature explain wrong arguments themselves.
        if not hasattr(cls.__init__, "__signature__"):
            check_arguments(cls, kwargs, OPTIONS)
        return super().__new__(cls)

    @property
    def actual_optimizer(self) -> "Optimizer":
        """The optimizer that takes the steps: this optimizer, or the one that it wraps."""
        return self

    def setup(self, link: Link) -> Self:
        """Sets the link whose parameters the optimizer updates, and resets hooks and counts.

        Returns:
            The optimizer itself.

        Raises:
            TypeError: ``link`` is not a Link.

        Warns:
            UserWarning: the link has no registered parameters, but has links or parameters as
                attributes that are not registered.
        """
        if not isinstance(link, Link):
            raise TypeError(f"{self._called('setup')}: link must be a Link, not {_kind(link)}")
        if next(link.params(), None) is None:
            _look_for_unregistered(link, self._called("setup"))
        self._keep_on_host()
        self.target = link
        self.t = 0
        self.epoch = 0
        self._hooks = HookList(self)
        return self

    def _called(self, method):
        return f"{type(self).__name__}.{method}"

    def _check_set_up(self, method):
        if self.target is None:
            raise RuntimeError(f"{self._called(method)}: call setup with a link first")

    def _is_elsewhere(self):
        """Returns whether the target is on a GPU that is not the current device."""
        target = self.target if "cupy" in sys.modules else None
        return target is not None and not target.device.is_current()

    def update(
        self, lossfun: Callable[..., Variable] | None = None, *args: Any, **kwds: Any
    ) -> None:
        """Updates the parameters; subclasses define how."""
        raise NotImplementedError(f"{type(self).__name__} does not implement update")

    def new_epoch(self, auto: bool = False) -> None:
        """Begins a new epoch.

        Args:
            auto: whether an updater is the caller. The value must equal :attr:`use_auto_new_epoch`.

        Raises:
            RuntimeError: ``auto`` differs from :attr:`use_auto_new_epoch`.
        """
        if auto != self.use_auto_new_epoch:
            rule = "set use_auto_new_epoch" if auto else "an updater calls it: do not call it too"
            raise RuntimeError(f"{self._called('new_epoch')}: {rule}")
        self.epoch += 1

    # Multi-node optimizers override the methods below.

    def connect_trainer(self, trainer: Any) -> None:
        """Called by the updater when a trainer is made with the updater."""

    def agree_on_signal(self, number: int | None) -> int | None:
        """See :meth:`mpchain.training.updaters.Updater.agree_on_signal`."""
        return number

    def rank_times(self) -> np.ndarray | None:
        """See :meth:`mpchain.training.updaters.Updater.rank_times`."""
        return None

    def gather_state(self, root: int = 0) -> None:
        """Gathers the whole state at rank ``root`` if it is divided among the ranks."""

    # The methods below handle hooks.

    def add_hook(
        self, hook: Callable[..., Any], name: str | None = None, timing: str = "auto"
    ) -> None:
        """Adds a hook.

        Args:
            hook: a callable with the optimizer as its argument. If its attribute
                ``call_for_each_param`` is True, it is called with each parameter's update rule and
                the parameter instead. If its attribute ``works_on_parts`` is True, a sharded
                optimizer calls it with slices of parameters (see :mod:`mpchain.optimizer_hooks`).
            name: the name by which :meth:`remove_hook` removes the hook; None means the hook's own
                name.
            timing: ``'pre'`` to call the hook before the update, or ``'post'`` after it; ``'auto'``
                means ``hook.timing`` if the hook has this attribute, else ``'pre'``.

        Raises:
            KeyError: the optimizer already has a hook with this name.
            RuntimeError: :meth:`setup` was not called.
            TypeError: ``hook`` is not callable.
            ValueError: ``timing`` is unknown.
        """
        self._check_set_up("add_hook")
        assert self._hooks is not None
        self._hooks.add(hook, name, timing)

    def remove_hook(self, name: str) -> None:
        """Removes the hook that has the given name."""
        self._check_set_up("remove_hook")
        assert self._hooks is not None
        self._hooks.remove(name)

    def call_hooks(self, timing: str = "pre") -> None:
        """Calls the hooks whose timing is ``timing``, ``'pre'`` or ``'post'``."""
        assert self._hooks is not None  # setup has created the hooks
        for hook in self._hooks.at(timing):
            self.call_hook(hook)

    def call_hook(self, hook: Callable[..., Any]) -> None:
        """Calls a hook with the optimizer, or for each parameter if the hook sets
        ``call_for_each_param``."""
        if getattr(hook, "call_for_each_param", False):
            for rule, param in self.rules_and_params():
                hook(rule, param)
        else:
            hook(self)

    def rules_and_params(self) -> Iterator[tuple[UpdateRule, Parameter]]:
        """Yields pairs of an update rule and the parameter that hooks and the update act on.

        If a float16 or bfloat16 parameter has a float32 copy, the copy is yielded in place of the
        parameter. In hooks, gradients do not include the loss scale.
        """
        for param in self.target.params(include_uninit=False):
            rule = param.update_rule
            if rule is not None:
                yield rule, rule.updated_param(param)

    # The methods below handle the loss scale.

    @property
    def loss_scale(self) -> float | None:
        """The factor on the loss of the next update, constant or dynamic; None if there is no loss
        scale.

        A program that calls ``backward`` before ``update()`` must pass this factor to ``backward``.
        Reading a dynamic scale waits for the GPU.
        """
        self._learn(waits=True)
        return self._loss_scale

    @property
    def has_dynamic_loss_scale(self) -> bool:
        """Whether the loss scale changes from step to step."""
        return self._loss_scale_growth is not None

    @property
    def _factor(self) -> Any:
        """The loss scale that ``backward`` receives: a number, an array on the GPU, or None."""
        return self._loss_scale if self.scale_on_gpu is None else self.scale_on_gpu.factor

    def _learn(self, waits):
        """Applies the GPU's decisions to skip steps (see :mod:`mpchain.kernels.gpu.loss_scale`)."""
        if self.scale_on_gpu is None:
            return
        for outcome in self.scale_on_gpu.outcomes(waits):
            self._is_safe = not outcome.names
            if outcome.names:
                self._warn_of_skip(outcome.t, outcome.names)
                for rule in outcome.rules:
                    rule.t -= 1
            self.update_loss_scale()

    def _keep_on_host(self):
        """Waits for the GPU's decisions, and moves the loss scale from the GPU to the host."""
        self._learn(waits=True)
        self.scale_on_gpu = None

    def _warn_of_skip(self, t, names):
        warnings.warn(
            f"{self._called('update')}: step {t} is skipped, because with loss scale "
            f"{self._loss_scale} the gradients of these parameters are not finite: "
            f"{', '.join(names)}",
            RuntimeWarning,
            stacklevel=6,
        )

    def set_loss_scale(self, loss_scale: float | None) -> None:
        """Sets a constant factor on the loss, which keeps small float16 gradients from vanishing.

        If gradients exist when :meth:`update` is called without a loss function, they must be
        gradients of the scaled loss. ``update`` divides gradients by the scale before hooks see the
        gradients.

        Args:
            loss_scale: a positive number, or None for no factor.

        Raises:
            ValueError: ``loss_scale`` is not a positive finite number.
        """
        if loss_scale is not None and not 0 < loss_scale < math.inf:
            raise ValueError(
                f"{self._called('set_loss_scale')}: loss_scale must be a positive number, "
                f"not {loss_scale}"
            )
        self._keep_on_host()
        self._loss_scale = loss_scale
        self._loss_scale_growth = None

    def loss_scaling(self, interval: int = 1000, scale: float | None = None) -> None:
        """Turns on a loss scale, dynamic by default.

        A dynamic scale starts at 1 and doubles in every step until a gradient is not finite; from
        then on, the scale doubles in ``interval`` steps. Whenever a gradient is not finite, the
        step is skipped and the scale is halved. The scale stays between 1 and 65504.

        Args:
            interval: the number of steps in which a dynamic scale doubles.
            scale: a constant scale; None means a dynamic one.
        """
        if interval < 1:
            raise ValueError(
                f"{self._called('loss_scaling')}: interval must be at least 1, not {interval}"
            )
        self.set_loss_scale(1.0 if scale is None else scale)
        if scale is None:
            self._loss_scale_growth = 2.0
            self._loss_scale_interval = interval

    def check_nan_in_grads(self) -> None:
        """Checks whether all gradients are finite, if the loss scale is dynamic."""
        self._is_safe = True
        if self._loss_scale_growth is None:
            return
        named = [(n, p) for n, p in self.target.namedparams() if p.grad is not None]
        finite = [param.xp.isfinite(param.grad).all() for _, param in named]
        names = []
        # If all gradients are finite, the host waits for the GPU only once.
        if not share_gpu(finite) or not named[0][1].xp.stack(finite).all():
            names = [name for (name, _), is_finite in zip(named, finite) if not is_finite]
        # Ranks that hold slices of the same parameters skip the step together.
        for comm in dict.fromkeys(p.divided_among for _, p in named):
            if comm is not None and comm.iallreduce(np.array([len(names)])).Wait()[0] > len(names):
                names.append(f"some parameters on ranks other than rank {comm.rank} of {comm.size}")
        if names:
            self._is_safe = False
            self._warn_of_skip(self.t + 1, names)

    def is_safe_to_update(self) -> bool:
        """Returns False if :meth:`check_nan_in_grads` found a gradient that is not finite."""
        self._learn(waits=True)
        return self._is_safe

    def update_loss_scale(self) -> None:
        """Multiplies a dynamic loss scale by its growth factor, or halves the scale if
        :meth:`check_nan_in_grads` found a gradient that is not finite."""
        if self._loss_scale_growth is None:
            return
        if not self._is_safe:
            self._loss_scale_growth = 2 ** (1 / self._loss_scale_interval)
        factor = self._loss_scale_growth if self._is_safe else 0.5
        self._loss_scale = min(max((self._loss_scale or 1.0) * factor, 1.0), _LARGEST_SCALE)

    def _remove_loss_scale(self):
        """Divides gradients by the loss scale. Returns a tuple of the factor that
        :func:`update_all` must apply to the other gradients; an empty tuple if there is no loss
        scale, or the scale is 1."""
        if self._loss_scale in (None, 1):
            return ()
        inverse = 1 / self._loss_scale
        for param in self._unscaled_before_step(inverse):
            # A bfloat16 array times a number gives a float32 array.
            param.grad = (param.grad * inverse).astype(param.dtype, copy=False)
        return (inverse,)

    def _unscaled_before_step(self, inverse):
        """Returns the parameters from whose gradients the caller must remove the loss scale.

        If no hooks see the gradients, this method itself may remove the scale from single-precision
        gradients on GPUs, with one kernel, and half-precision gradients may keep the scale until
        the step reads them.
        """
        params, rest, single = [*self.target.params(include_uninit=False)], [], []
        are_seen = bool(self._hooks) or type(self).call_hooks is not Optimizer.call_hooks
        if are_seen or _on_gpu is None or len(set(map(id, params))) < len(params):
            rest = [param for _, param in self.rules_and_params()]
        else:
            for param in params:
                rule = param.update_rule
                if rule is not None and not is_unscaled_in_step(param):
                    param = rule.updated_param(param)
                    (single if is_plain_on_gpu(param.grad) else rest).append(param)
        for param, grad in zip(single, multiply_all([p.grad for p in single], inverse)):
            param.grad = grad
        return [param for param in rest if param.grad is not None]

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the counts, a dynamic loss scale and the states of all update rules."""
        self._check_set_up("serialize")
        self._keep_on_host()
        self.t = serializer("t", self.t)
        self.epoch = serializer("epoch", self.epoch)
        if self._loss_scale_growth is not None:
            for name in ("_loss_scale", "_loss_scale_growth"):
                setattr(self, name, if_saved(serializer, name.strip("_"), getattr(self, name)))
        for name, param in self.target.namedparams():
            if param.update_rule is not None:
                param.update_rule.serialize(serializer[name])


def _kind(value):
    return type(value).__name__


class GradientMethod(Optimizer):
    """Base of optimizers that update each parameter with its gradient.

    A subclass sets ``rule`` to the class of its update rules; the rule's hyperparameters become the
    subclass's arguments and attributes. Alternatively, it overrides :meth:`create_update_rule`.

    Example:
        >>> class SignSGDRule(mpchain.UpdateRule):
        ...     hyperparameters = {"lr": 0.1}
        ...     step = staticmethod(lambda p, g, lr: (p - lr * np.sign(g),))
        >>> class SignSGD(GradientMethod):
        ...     rule = SignSGDRule
        >>> SignSGD(lr=0.5).lr
        0.5
    """

    rule: type[UpdateRule] | None = None
    _use_cleargrads = True
    # None means that the program has not called use_fp32_update.
    _use_fp32_update: bool | None = None
    _has_looked_for_half = False

    # Subclasses accept the hyperparameters of their rules as arguments and attributes.
    if TYPE_CHECKING:

        def __init__(self, *args: Any, **hyperparams: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: object) -> None: ...

    else:

        def __init__(self):
            self.hyperparam = Hyperparameter()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "rule" in cls.__dict__ and cls.rule is not None:
            for name in cls.rule.hyperparameters:
                if not hasattr(cls, name):
                    setattr(cls, name, HyperparameterProxy(name))
            cls.__init__ = _constructor(cls.__name__, cls.rule.hyperparameters)

    def create_update_rule(self) -> UpdateRule:
        """Returns a new update rule for one parameter."""
        if self.rule is None:
            raise NotImplementedError(
                f"{type(self).__name__} does not implement create_update_rule"
            )
        return self.rule(self.hyperparam)

    def setup(self, link: Link) -> Self:
        super().setup(link)
        self._has_looked_for_half = False
        for param in link.params():
            param.update_rule = rule = self.create_update_rule()
            rule.enabled = param.update_enabled
            rule.use_fp32_update(bool(self._use_fp32_update))
        return self

    def use_cleargrads(self, use: bool = True) -> None:
        """Chooses whether :meth:`update` clears gradients (faster) or fills them with zeros."""
        self._use_cleargrads = use

    def use_fp32_update(self, flag: bool = True) -> None:
        """Chooses whether float16 and bfloat16 parameters are updated on float32 copies, where
        small steps add up.

        The first update of such parameters warns if this method was not called, and for float16
        also if no loss scale was set.
        """
        self._use_fp32_update = flag
        if self.target is not None:
            for param in self.target.params():
                if param.update_rule is not None:
                    param.update_rule.use_fp32_update(flag)

    def reallocate_cleared_grads(self) -> None:
        """Replaces gradients that are None by zeros."""
        for param in self.target.params(include_uninit=False):
            if not has_gradient(param):
                with param.device.create_context():
                    param.grad = param.xp.zeros_like(param.array)

    def update(
        self, lossfun: Callable[..., Variable] | None = None, *args: Any, **kwds: Any
    ) -> None:
        """Updates the parameters.

        Args:
            lossfun: function of ``args`` and ``kwds`` that returns the loss, a Variable. None means
                that the gradients have already been computed.

        Raises:
            RuntimeError: :meth:`setup` was not called.
            TypeError: ``lossfun`` does not return a Variable.

        Warns:
            UserWarning: once, if parameters are float16 or bfloat16 and :meth:`use_fp32_update` was
                not called, or parameters are float16 and neither :meth:`loss_scaling` nor
                :meth:`set_loss_scale` was called; in the first update, if no parameter has a
                gradient.
            RuntimeWarning: the loss scale is dynamic, and the step is skipped because gradients
                are not finite.
        """
        self._check_set_up("update")
        if self._is_elsewhere():
            with self.target.device.create_context():
                return self.update(lossfun, *args, **kwds)
        with span("optimizer", "optimizer", self):
            if lossfun is not None:
                if current.observers is not None:
                    parts = [(self.n_samples, functools.partial(lossfun, *args, **kwds))]
                    ((_, lossfun),), args, kwds = shown_parts(self, parts), (), {}
                self._compute_grads(lossfun, args, kwds)
            if current.recorder is not None:
                assert self._hooks is not None  # setup has created the hooks
                if not self._hooks.at("pre"):
                    refuse_large_tables(self.target.params())
            outside(self._update_params)

    def _update_params(self):
        """Updates the parameters with their gradients."""
        params = list(self.target.params(include_uninit=False))
        if not self._has_looked_for_half:
            self._look_for_half(params)
        for param in params:
            if not has_gradient(param):
                if self.t == 0:
                    self._look_for_gradients(params)
                self.reallocate_cleared_grads()
                break
        if self._can_stay_on_gpu(params):
            self._update_on_gpu(params)
            return
        self._keep_on_host()
        self.check_nan_in_grads()
        more = ()
        if self._is_safe:
            more = self._remove_loss_scale() or ()
            self.call_hooks("pre")
        self.t += 1
        if self._is_safe:
            update_all(params, *more)
            self.call_hooks("post")
        self.update_loss_scale()

    def _can_stay_on_gpu(self, params):
        """Returns whether the GPU can decide, without the host, to skip a step because of a dynamic
        loss scale."""
        if self._loss_scale_growth is None or not params or _on_gpu is None:
            return False
        if current.graph is not None and self.scale_on_gpu is None:
            return False
        assert self._hooks is not None  # setup has created the hooks
        grads, rules = [p.grad for p in params], [p.update_rule for p in params]
        hooks = [*self._hooks.at("pre"), *self._hooks.at("post")]
        return (
            share_gpu(grads)
            and all(grad.dtype.char in "efd" for grad in grads)
            and all(p.divided_among is None for p in params)
            and all(map(takes_guarded_steps, params, rules))
            and all(getattr(hook, "changes_gradients_only", False) for hook in hooks)
            and all(getattr(type(self), n) is getattr(Optimizer, n) for n in _OF_LOSS_SCALE)
        )

    def _update_on_gpu(self, params):
        if current.graph is None:
            self._learn(waits=False)
        if self.scale_on_gpu is None:
            assert _on_gpu is not None  # _can_stay_on_gpu has checked this
            growth = 2 ** (1 / self._loss_scale_interval)
            was_reduced = self._loss_scale_growth != 2
            self.scale_on_gpu = _on_gpu.LossScaleOnGpu(self._loss_scale, growth, was_reduced)
        scale, named = self.scale_on_gpu, dict(self.target.namedparams())
        self.t += 1
        grads = [(name, p.grad) for name, p in named.items() if p.grad is not None]
        scale.step(
            self.t, grads, lambda: self._take_scaled_step(params), [p.update_rule for p in params]
        )

    def _take_scaled_step(self, params):
        inverse, factors = 1 / self._factor, {}
        single = inverse.astype(np.float32)
        for param in self._unscaled_before_step(single):
            dtype = param.grad.dtype
            if dtype not in factors:
                factors[dtype] = inverse.astype(dtype)
            param.grad = param.grad * factors[dtype]
        self.call_hooks("pre")
        update_all(params, single)
        self.call_hooks("post")

    def _look_for_half(self, params):
        """Warns of half-precision parameters if :meth:`use_fp32_update` was not called, and of
        float16 parameters if there is no loss scale."""
        self._has_looked_for_half = True
        narrow = {param.dtype.name for param in params if is_half(param.dtype)}
        missing = []
        if self._use_fp32_update is None:
            missing.append("use_fp32_update(): small steps are rounded away without it")
        if self._loss_scale is None and "float16" in narrow:
            missing.append("loss_scaling(): small gradients become zero without it")
        if missing and narrow:
            warnings.warn(
                f"{self._called('update')}: parameters are {' and '.join(sorted(narrow))}: call "
                "the optimizer's "
                f"{'; and '.join(missing)}",
                UserWarning,
                stacklevel=5,
            )

    def _look_for_gradients(self, params):
        """Warns if no parameter that the first step would update has a gradient.

        Only the first step is checked, because later steps without gradients may be intended:
        momentum moves parameters even after ``cleargrads``.
        """
        updated = [p for p in params if p.update_rule is not None and p.update_rule.enabled]
        if updated and not any(map(has_gradient, updated)):
            warnings.warn(
                f"{self._called('update')}: no parameter has a gradient, so the first step learns "
                "nothing. The loss must depend on the parameters, outside of no_backprop_mode; "
                "without a loss function, call loss.backward() before update; a loss made of "
                "gradients needs grad(..., enable_double_backprop=True)",
                UserWarning,
                stacklevel=5,
            )

    def _compute_grads(self, lossfun, args, kwds):
        with span("forward", "forward", self) as seen:
            seen.result = loss = lossfun(*args, **kwds)
        if not isinstance(loss, Variable):
            raise TypeError(
                f"{self._called('update')}: lossfun must return a Variable, not {_kind(loss)}"
            )
        if self._use_cleargrads:
            self.target.cleargrads()
        else:
            for param in self.target.params():
                param.zerograd()
        loss.backward(loss_scale=self._factor)


def _look_for_unregistered(link, called):
    """Warns if a link without parameters has links or parameters that were not registered."""
    registered = {child.name for child in link.children()}
    layers = [n for n, value in vars(link).items() if isinstance(value, (Link, Parameter))]
    names = [name for name in layers if name not in registered]
    if names:
        warnings.warn(
            f"{called}: {_kind(link)} has no parameters, so nothing will be trained: assign "
            f"{', '.join(names)} within 'with self.init_scope():'",
            UserWarning,
            stacklevel=4,
        )


def _constructor(class_name, hyperparameters):
    """Returns an ``__init__`` that accepts the hyperparameters by position or by name."""
    arguments = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in hyperparameters.items()
    ]
    signature = inspect.Signature(arguments)

    def __init__(self, *args, **kwargs):
        # PyTorch's optimizers take parameters as the first argument.
        if args and isinstance(args[0], (Link, Iterator, list, dict)):
            raise TypeError(
                f"{class_name}: {arguments[0].name} must be a number, not {_kind(args[0])}; the "
                f"parameters to update are set by {class_name}().setup(model)"
            )
        try:
            values = signature.bind(*args, **kwargs)
        except TypeError as error:
            message = f"{class_name}: {error}; the arguments are {signature}"
            for name in kwargs.keys() - hyperparameters.keys():
                right = OPTIONS.get(name, "")
                if right in hyperparameters or not right.isidentifier():
                    message += f"; instead of {name} use {right}" if right else ""
            raise TypeError(message) from None
        values.apply_defaults()
        GradientMethod.__init__(self)
        for name, value in values.arguments.items():
            setattr(self.hyperparam, name, value)

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    __init__.__signature__ = signature.replace(parameters=[itself, *arguments])
    return __init__
