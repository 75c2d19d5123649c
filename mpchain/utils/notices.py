"""Warnings of experimental and nondeterministic features, temporary folders, and methods that must
not be overridden."""

import contextlib
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from mpchain.configuration import config


def experimental(api_name: str) -> None:
    """Warns that an interface may change.

    ``config.disable_experimental_feature_warning`` disables the warning in a thread, and
    ``mpchain.disable_experimental_feature_warning`` disables it everywhere.

    Example:
        >>> with testing.assert_warns(FutureWarning):
        ...     mpchain.utils.experimental("my_package.my_function")
    """
    everywhere = sys.modules["mpchain"].disable_experimental_feature_warning
    if not (everywhere or config.disable_experimental_feature_warning):
        message = f"{api_name} is experimental. The interface can change in the future."
        warnings.warn(message, FutureWarning, stacklevel=2)


def nondeterministic(f_name: str) -> None:
    """Warns, if ``config.warn_nondeterministic``, that a result may differ from run to run.

    Example:
        >>> with mpchain.using_config("warn_nondeterministic", True):
        ...     with testing.assert_warns(UserWarning):
        ...         mpchain.utils.nondeterministic("my_function")
    """
    if config.warn_nondeterministic:
        message = (
            "Potentially non-deterministic code is being executed while "
            f"config.warn_nondeterministic is set. Source: {f_name}"
        )
        warnings.warn(message, UserWarning, stacklevel=2)


@contextlib.contextmanager
def tempdir(**kwargs: Any) -> Iterator[str]:
    """Context manager: makes a temporary folder, yields its name and removes it at the end.

    Args:
        kwargs: arguments of :func:`tempfile.mkdtemp`.

    Example:
        >>> import os
        >>> with mpchain.utils.tempdir() as folder:
        ...     os.listdir(folder)
        []
    """
    folder = tempfile.mkdtemp(**kwargs)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def final(method: Callable | None = None, *, action: type[Exception] = TypeError) -> Callable:
    """Decorator: declares that subclasses must not override a method. The class must derive from a
    class that :func:`enable_final` has returned.

    Args:
        method: the method.
        action: the class of the exception or warning that a subclass that overrides the method
            causes.

    Example:
        >>> class Base(mpchain.utils.enable_final()):
        ...     @mpchain.utils.final
        ...     def run(self): ...
        >>> class Derived(Base):
        ...     def run(self): ...
        Traceback (most recent call last):
        TypeError: Derived must not override Base.run
    """
    if method is None:
        return lambda method: final(method, action=action)
    vars(method)["_final_action"] = action
    return method


def enable_final(
    base: type | tuple[type, ...] = (), meta_base: type | tuple[type, ...] = ()
) -> type:
    """Returns a base class whose subclasses are checked for overridden methods that :func:`final`
    marks.

    Args:
        base: the base class or classes of the result.
        meta_base: metaclass or metaclasses that the result needs in addition.

    Example:
        >>> class Base(mpchain.utils.enable_final(base=dict)):
        ...     @mpchain.utils.final
        ...     def run(self): ...
    """
    base = base if isinstance(base, tuple) else (base,)
    meta_base = meta_base if isinstance(meta_base, tuple) else (meta_base,)
    metaclass = type("_Final", (_ChecksFinal, *meta_base), {})
    return metaclass("enable_final", base, {})


class _ChecksFinal(type):
    def __init__(cls, name, bases, attributes):
        super().__init__(name, bases, attributes)
        for attribute in attributes:
            for ancestor in cls.__mro__[1:]:
                action = getattr(vars(ancestor).get(attribute), "_final_action", None)
                if action is not None:
                    _tell(action, f"{name} must not override {ancestor.__name__}.{attribute}")


def _tell(action, message):
    if issubclass(action, Warning):
        warnings.warn(message, action, stacklevel=4)
    else:
        raise action(message)
