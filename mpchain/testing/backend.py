"""Runs the same tests on each device, with each setting of cuDNN."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from mpchain import backend
from mpchain.backend import Device
from mpchain.configuration import using_config
from mpchain.testing import attr
from mpchain.testing.parameterized import Bundle, derive

_DEFAULTS = {
    "use_chainerx": False,
    "chainerx_device": None,
    "use_cuda": False,
    "cuda_device": None,
    "use_cudnn": "never",
    "cudnn_deterministic": False,
    "autotune": False,
    "cudnn_fast_batch_normalization": False,
    "use_ideep": "never",
}
_CONFIG = ("use_cudnn", "cudnn_deterministic", "autotune", "cudnn_fast_batch_normalization")


class BackendConfig:
    """A device and settings for a test; a context manager that applies them.

    Args:
        params: any of ``use_cuda``, ``cuda_device`` (0 if CUDA is used), ``use_cudnn``,
            ``cudnn_deterministic``, ``cudnn_fast_batch_normalization``, ``autotune``,
            ``use_ideep``, ``use_chainerx``, ``chainerx_device``; they become attributes.

    Raises:
        ValueError: a parameter is unknown.

    Example:
        >>> config = testing.BackendConfig({"use_cudnn": "always"})
        >>> config.device, config.xp is np
        (<CpuDevice @numpy>, True)
        >>> with config:
        ...     mpchain.config.use_cudnn
        'always'
    """

    if TYPE_CHECKING:  # the constructor sets this attribute from a parameter

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, params: dict[str, Any]):
        for name in params:
            if name not in _DEFAULTS:
                raise ValueError(f"BackendConfig: parameter {name} is not defined")
        vars(self).update({**_DEFAULTS, **params})
        if self.use_cuda and self.cuda_device is None:
            self.cuda_device = 0
        self._contexts = []

    @property
    def device(self) -> Device:
        """The device; raises RuntimeError for a ChainerX device, and TypeError if ``use_chainerx``
        is set but no device is named."""
        if self.use_chainerx:
            return backend.get_device(self.chainerx_device)
        if self.use_cuda:
            return backend.get_device(f"@cupy:{self.cuda_device}")
        return backend.get_device("@numpy" if self.use_ideep == "never" else "@intel64")

    @property
    def xp(self) -> Any:
        """The array module of the device."""
        return self.device.xp

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for name in (*_CONFIG, "use_ideep"):
                stack.enter_context(using_config(name, getattr(self, name)))
            stack.enter_context(self.device.create_context())
            self._contexts.append(stack.pop_all())
        return self

    def __exit__(self, *exc_info: Any) -> bool | None:
        return self._contexts.pop().__exit__(*exc_info)

    def __repr__(self) -> str:
        shown = " ".join(f"{name}={getattr(self, name)!r}" for name in _DEFAULTS)
        return f"<BackendConfig {shown}>"

    def get_array(self, np_array: object) -> Any:
        """Transfers a NumPy array, None, or a tuple or list of them to the device."""
        return self.device.send(np_array)

    def get_func_str(self) -> str:
        """Returns the parameters as a part of a test's name."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        shown = {True: "true", False: "false"}
        return "__".join(
            f"{name}_{shown[value] if isinstance(value, bool) else value}"
            for name, value in values.items()
        )

    def get_pytest_marks(self) -> list[Callable]:
        """Returns the decorators of :mod:`mpchain.testing.attr` that match the parameters."""
        marks = []
        if self.use_chainerx:
            marks.append(attr.chainerx)
        if self.use_cuda:
            marks.append(attr.gpu)
            if self.use_cudnn != "never":
                marks.append(attr.cudnn)
            if self.cuda_device >= 1:
                marks.append(attr.multi_gpu(self.cuda_device + 1))
        if self.use_ideep != "never":
            marks.append(attr.ideep)
        return marks


def inject_backend_tests(
    method_names: str | Sequence[str] | None, params: Sequence[dict[str, Any]]
) -> Callable[[Any], Bundle]:
    """Class decorator: runs test methods with each of several BackendConfigs as first argument.

    The decorator makes a class for each configuration, named ``<Base>_`` and the parameters. Other
    methods run once, in a class named ``<Base>_other`` (``<Base>`` if that class was generated).

    Args:
        method_names: name or list of names; None means all methods whose names begin with "test".
        params: list of dicts of parameters of :class:`BackendConfig`.

    Example:
        >>> @testing.inject_backend_tests(None, [{}, {"use_cuda": True}])
        ... class TestReLU(unittest.TestCase):
        ...     def test_forward(self, backend_config):
        ...         x = backend_config.get_array(np.array([-1.0, 2.0]))
        ...         testing.assert_allclose(F.relu(x), [0.0, 2.0])
    """
    if isinstance(method_names, str):
        method_names = [method_names]
    configs = [BackendConfig(param) for param in params]
    generated = []

    def variants(base):
        tests = [n for n in dir(base) if n.startswith("test") and callable(getattr(base, n))]
        for name in method_names or ():
            if not hasattr(base, name):
                raise AttributeError(f"inject_backend_tests: {base.__name__} has no method {name}")
        chosen = [n for n in tests if method_names is None or n in method_names]
        others = dict.fromkeys(n for n in tests if n not in chosen)
        for config in configs if chosen else ():
            methods = {name: _with_argument(getattr(base, name), config) for name in chosen}
            yield f"_{config.get_func_str()}", {**others, **methods}
        if others:
            # A generated class keeps its name; the user's own class already has the plain name.
            yield "" if base in generated or not chosen else "_other", dict.fromkeys(chosen)

    def decorate(cls):
        generated.extend(cls.classes if isinstance(cls, Bundle) else ())
        return derive(cls, variants)

    return decorate


def _with_argument(method, config):
    @functools.wraps(method)
    def test(self, *args, **kwargs):
        return method(self, config, *args, **kwargs)

    # pytest reads the names of a test's fixtures from this signature.
    parameters = list(inspect.signature(method).parameters.values())
    vars(test)["__signature__"] = inspect.Signature(parameters[:1] + parameters[2:])
    for decorate in config.get_pytest_marks():
        test = decorate(test)
    return test
