"""Configuration: global defaults, thread-local values that override them, and the dtype policy.

The library reads ``config``, which holds the values that this thread has set, and falls back to
``global_config``, which all threads share. Programs may set any name that begins with ``user_``.
Other unknown names are refused, because a misspelled name would silently have no effect; programs
for Chainer (:mod:`mpchain.compat`) may set all names.
"""

import contextlib
import difflib
import functools
import os
import sys
import threading
import warnings
from typing import Any, TextIO

import numpy as np

from mpchain.backends.dtypes import as_dtype, is_floating
from mpchain.typing import DTypeLike


class Mixed16:
    """The dtype policy of mixed precision: ``mpchain.global_config.dtype = mpchain.mixed16``.

    Links that are made under this policy have float16 parameters, except that the parameters and
    statistics of BatchNormalization, BatchRenormalization, DecorrelatedBatchNormalization,
    GroupNormalization and InstanceNormalization are float32. NumPy treats the policy as the dtype
    of the data: ``x.astype(mixed16)`` is float16. Call the optimizer's ``use_fp32_update()``, which
    updates float32 copies of the parameters, and ``loss_scaling()``, which keeps small gradients
    from vanishing; otherwise the optimizer warns.

    Under every policy, different dtypes are combined by these rules:

    - A function of inputs and parameters (linear, convolutions, bilinear, prelu, normalizations,
      recurrent layers, ...) gives results of the dtype of its inputs. Parameters may be wider than
      inputs: with float32 parameters and a float16 input, the function computes in float32 and
      rounds the result. Losses that have parameters stay as wide as the parameters.
    - Inputs that are wider than parameters raise InvalidType, because the result, and all later
      results, would be computed in the wider dtype. A float64 array, NumPy's default, is therefore
      refused with float32 parameters, and a float32 array with float16 parameters: cast it with
      ``x.astype(np.float32)`` or ``functions.cast(x, "float32")``.
    - Functions of several equivalent inputs, such as ``x + y`` of Variables, matmul, concat and
      where, promote as NumPy does: float16 and float32 give float32. But the operators ``+``,
      ``-``, ``*``, ``/`` and ``**`` cast a plain array to the dtype of a floating-point Variable.
      Gates and memory of an LSTM must have the same dtype.
    - Gradients have the dtype of their variables.

    Example:
        >>> with mpchain.using_config("dtype", mpchain.mixed16):
        ...     print(L.Linear(2, 2).W.dtype, L.BatchNormalization(2).gamma.dtype)
        float16 float32
    """

    _name = "mixed16"

    @property
    def dtype(self) -> np.dtype:
        """The dtype of parameters and data."""
        return np.dtype(np.float16)

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name


class MixedBfloat16(Mixed16):
    """Mixed precision with bfloat16: ``mpchain.global_config.dtype = mpchain.mixed_bf16``.

    All rules of :class:`Mixed16` hold, with bfloat16 instead of float16. The dtype has the range of
    float32, so no loss scale is needed, but only 8 significant bits, so ``use_fp32_update()`` is
    needed: without it, steps smaller than 1/512 of a parameter are lost.

    Functions compute in float32 and round their results. They promote bfloat16 and float16 to
    float32, bfloat16 and integers of 32 or more bits to float64, and bfloat16 and smaller integers
    to bfloat16. The library ml_dtypes gives NumPy the dtype; a program that imports it can write
    ``x.astype("bfloat16")``.

    Example:
        >>> with mpchain.using_config("dtype", mpchain.mixed_bf16):
        ...     print(L.Linear(2, 2).W.dtype, L.BatchNormalization(2).gamma.dtype)
        bfloat16 float32
    """

    _name = "mixed_bf16"

    @property
    def dtype(self) -> np.dtype:
        return as_dtype("bfloat16")


mixed16 = Mixed16()
mixed_bf16 = MixedBfloat16()


class GlobalConfig:
    """Entries that all threads see; a thread can set values of its own in a :class:`LocalConfig`.

    A program may set these entries and those whose names begin with ``user_``.

    Args:
        entries: the initial values, by name.

    Example:
        >>> mpchain.global_config.user_depth = 3
        >>> mpchain.config.user_depth
        3
        >>> del mpchain.global_config.user_depth
        >>> mpchain.global_config.trian = False
        Traceback (most recent call last):
        AttributeError: config has no entry 'trian': do you mean 'train'? Names of a program's own \
entries begin with 'user_'
    """

    _readers: list[Any]
    _takes_all_names: bool

    def __init__(self, **entries: Any):
        vars(self).update(_readers=[], _takes_all_names=False, **entries)

    def __setattr__(self, name: str, value: object) -> None:
        self._check(name)
        object.__setattr__(self, name, value)
        for reader in self._readers:
            setattr(reader, name, _as_class_attribute(value))

    def _check(self, name):
        """Raises AttributeError if the name is neither an entry nor free for programs."""
        if name in vars(self) or name.startswith("user_") or self._takes_all_names:
            return
        meant = difflib.get_close_matches(name, _entries(self), 1)
        raise AttributeError(
            f"config has no entry {name!r}: "
            + "".join(f"do you mean {each!r}? " for each in meant)
            + "Names of a program's own entries begin with 'user_'"
        )

    def take_all_names(self, takes: bool) -> None:
        """Chooses whether programs may set entries of any name, as in Chainer.

        Example:
            >>> mpchain.global_config.take_all_names(False)  # the default
        """
        object.__setattr__(self, "_takes_all_names", takes)

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        for reader in self._readers:
            delattr(reader, name)

    def show(self, file: TextIO | None = None) -> None:
        """Prints every entry as ``name value``, sorted, to ``file`` (None: standard output)."""
        _print_entries(_entries(self), file)


class LocalConfig(threading.local):
    """This thread's entries; entries that the thread has not set come from ``global_config``.

    Example:
        >>> mpchain.config.train
        True
        >>> with mpchain.using_config("train", False):
        ...     mpchain.config.train, mpchain.global_config.train
        (False, True)
    """

    # Each instance has its own class, whose attributes are the global entries: the engine reads the
    # configuration several times per operation, so each read must be one attribute look-up. (A
    # ``__getattr__`` would make every look-up twice as slow.)

    def __new__(cls, global_config: GlobalConfig) -> "LocalConfig":
        entries = {
            name: _as_class_attribute(value) for name, value in _entries(global_config).items()
        }
        reader = type(
            cls.__name__,
            (cls,),
            {"__doc__": cls.__doc__, "_global_config": global_config, **entries},
        )
        global_config._readers.append(reader)
        # threading.local.__new__ also accepts the arguments of __init__.
        make: Any = super().__new__
        return make(reader, global_config)

    def __init__(self, global_config: GlobalConfig):
        """Does nothing; ``threading.local`` calls this method in each thread."""

    def __setattr__(self, name: str, value: object) -> None:
        if not hasattr(self, name):
            self._global_config._check(name)
        super().__setattr__(name, value)

    def show(self, file: TextIO | None = None) -> None:
        """Prints every entry that this thread sees as ``name value``, sorted by name."""
        _print_entries({**_entries(self._global_config), **vars(self)}, file)


def _as_class_attribute(value):
    """Returns a value that can be stored in a class: a function is wrapped, so that it does not
    become a method."""
    return staticmethod(value) if callable(value) and hasattr(value, "__get__") else value


def _entries(config):
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


def _print_entries(entries, file):
    file = sys.stdout if file is None else file
    width = max(map(len, entries))
    for name in sorted(entries):
        print(f"{name:<{width}} {entries[name]}", file=file)


def _environment_flag(name, default):
    text = os.environ.get(name)
    if text is None or text == "":
        return default
    if text not in ("0", "1"):
        raise ValueError(f"environment variable {name} must be 0 or 1, not {text!r}")
    return text == "1"


def _environment_choice(name, default, choices):
    value = os.environ.get(name, default)
    if value not in choices:
        raise ValueError(
            f"environment variable {name} must be one of {', '.join(choices)}, not {value!r}"
        )
    return value


def _environment_dtype():
    policies = {"mixed16": mixed16, "mixed_bf16": mixed_bf16}
    names = (*policies, "bfloat16", "float16", "float32", "float64")
    name = _environment_choice("CHAINER_DTYPE", "float32", names)
    return policies.get(name) or as_dtype(name)


global_config = GlobalConfig(
    autotune=False,
    compute_mode=None,
    cudnn_deterministic=False,
    cudnn_fast_batch_normalization=_environment_flag(
        "CHAINER_CUDNN_FAST_BATCH_NORMALIZATION", False
    ),
    debug=_environment_flag("CHAINER_DEBUG", False),
    disable_experimental_feature_warning=False,
    dtype=_environment_dtype(),
    enable_backprop=True,
    function_hooks={},
    in_recomputing=False,
    keep_graph_on_report=_environment_flag("CHAINER_KEEP_GRAPH_ON_REPORT", False),
    kernels=(),
    lazy_grad_sum=_environment_flag("CHAINER_LAZY_GRAD_SUM", False),
    link_hooks={},
    rng=None,
    schedule_func=None,
    train=True,
    type_check=_environment_flag("CHAINER_TYPE_CHECK", True),
    use_cudnn=_environment_choice("CHAINER_USE_CUDNN", "auto", ("always", "auto", "never")),
    use_cudnn_tensor_core="auto",
    use_ideep=_environment_choice("CHAINER_USE_IDEEP", "never", ("always", "auto", "never")),
    use_static_graph=True,
    warn_nondeterministic=False,
)
"""The entries that all threads share.

Chainer does not have the entries ``kernels`` (names of kernels' libraries to prefer, in order),
``rng`` (a generator of NumPy from which initializers and distributions draw; None means NumPy's
global state), ``function_hooks`` and ``link_hooks`` (active hooks by name).
"""

config = LocalConfig(global_config)
"""The configuration of the current thread."""


_UNSET = object()


class using_config(contextlib.ContextDecorator):
    """Context manager: sets the entry ``name`` to ``value`` in this thread (or in ``config``).

    Raises:
        AttributeError: there is no such entry, and ``name`` does not begin with ``user_``.
        RuntimeError: the context manager is entered again within its own block.

    Example:
        >>> with mpchain.using_config("train", False):
        ...     F.dropout(np.ones(3), 0.9).array
        array([1., 1., 1.])
    """

    # Every backward pass runs this code; a generator would take half a microsecond longer.

    _put: Any = None  # a function that sets the entry, in the block

    def __init__(self, name: str, value: object, config: GlobalConfig | LocalConfig = config):
        self._name, self._value, self._config = name, value, config

    def _recreate_cm(self) -> "using_config":
        return using_config(self._name, self._value, self._config)

    def __enter__(self) -> None:
        config, name = self._config, self._name
        if self._put is not None:
            raise RuntimeError(
                f"using_config: the block of this context manager for {name!r} has not ended: call "
                "using_config again for another block"
            )
        # Only the dictionary knows which entries a thread has set.
        own = vars(config)
        self._before = own.get(name, _UNSET)
        is_plain = isinstance(config, LocalConfig) and hasattr(config, name)
        put = own.__setitem__ if is_plain else functools.partial(setattr, config)
        put(name, self._value)
        self._put = put

    def __exit__(self, *exc_info: Any) -> None:
        put, self._put = self._put, None
        if self._before is _UNSET:
            delattr(self._config, self._name)
        else:
            put(self._name, self._before)


def no_backprop_mode() -> contextlib.AbstractContextManager[None]:
    """Context manager: functions that are called inside record no graph, which saves memory.

    Example:
        >>> with mpchain.no_backprop_mode():
        ...     F.exp(Variable(np.zeros(1))).creator is None
        True
    """
    return using_config("enable_backprop", False)


def force_backprop_mode() -> contextlib.AbstractContextManager[None]:
    """Context manager: functions record their graph, even inside :func:`no_backprop_mode`.

    Example:
        >>> with mpchain.no_backprop_mode(), mpchain.force_backprop_mode():
        ...     F.exp(Variable(np.zeros(1))).creator is None
        False
    """
    return using_config("enable_backprop", True)


def is_debug() -> bool:
    """Returns whether this thread is in debug mode.

    Example:
        >>> mpchain.is_debug()
        False
    """
    return bool(config.debug)


def set_debug(debug: bool) -> None:
    """Turns debug mode on or off in this thread. Debug mode checks results for NaN and records
    where graph nodes were created.

    Example:
        >>> mpchain.set_debug(True); mpchain.is_debug()
        True
        >>> mpchain.set_debug(False)
    """
    config.debug = debug


def add_hook(entry: str, name: str, hook: object) -> None:
    """Adds a hook to this thread's dict of hooks, an entry of the configuration.

    Example:
        >>> add_hook("link_hooks", "mine", None)
        >>> mpchain.config.link_hooks
        {'mine': None}
        >>> remove_hook("link_hooks", "mine")
    """
    # This makes a new dictionary, because all threads may share the current dictionary.
    setattr(config, entry, {**getattr(config, entry), name: hook})


def remove_hook(entry: str, name: str) -> None:
    """Removes a hook that :func:`add_hook` added.

    Example:
        >>> add_hook("link_hooks", "mine", None)
        >>> remove_hook("link_hooks", "mine")
        >>> mpchain.config.link_hooks
        {}
    """
    hooks = dict(getattr(config, entry))
    del hooks[name]
    setattr(config, entry, hooks)
    if hooks == getattr(global_config, entry):
        delattr(config, entry)  # This thread then sees later changes of the global entry.


class DebugMode:
    """Context manager: sets the debug mode. Deprecated: use ``using_config("debug", ...)``.

    Example:
        >>> with mpchain.using_config("debug", True):  # use this instead
        ...     mpchain.is_debug()
        True
    """

    def __init__(self, debug: bool):
        warnings.warn(
            'DebugMode is deprecated: use using_config("debug", ...)',
            DeprecationWarning,
            stacklevel=2,
        )
        self._scope = using_config("debug", bool(debug))

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        self._scope.__exit__(*exc_info)


def get_compute_mode() -> str | None:
    """Returns the compute mode of this thread (None, or the name of a mode).

    Example:
        >>> mpchain.configuration.get_compute_mode() is None
        True
    """
    return config.compute_mode


@functools.cache
def _float_dtype(spec):
    dtype = as_dtype(spec)
    if not is_floating(dtype):
        raise ValueError(
            f"get_dtype: map_mixed16 must be None or a floating-point dtype, not {dtype}"
        )
    return dtype


def get_dtype(
    dtype: DTypeLike | Mixed16 | None = None, map_mixed16: DTypeLike | None = None
) -> np.dtype:
    """Resolves a dtype specification.

    Args:
        dtype: argument of :class:`numpy.dtype`, ``"bfloat16"``, ``mixed16``, ``mixed_bf16``, or
            None for ``config.dtype``.
        map_mixed16: dtype to return instead of ``mixed16`` and ``mixed_bf16``; None means float16
            and bfloat16.

    Example:
        >>> mpchain.get_dtype(), mpchain.get_dtype(mpchain.mixed16, map_mixed16=np.float32)
        (dtype('float32'), dtype('float32'))
    """
    if dtype is None:
        dtype = config.dtype
    if isinstance(dtype, Mixed16):
        return dtype.dtype if map_mixed16 is None else _float_dtype(map_mixed16)
    return as_dtype(dtype)
