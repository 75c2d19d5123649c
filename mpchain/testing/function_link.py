"""Test cases for functions and links: outputs and derivatives, on every device."""

import contextlib
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from mpchain import gradient_check
from mpchain.backend import Device
from mpchain.backends import cuda
from mpchain.backends.dtypes import is_floating
from mpchain.gradient_check import NondifferentiableError, assert_allclose
from mpchain.link import Link
from mpchain.testing.backend import BackendConfig
from mpchain.typing import InitialValue
from mpchain.variable import Parameter, Variable, get_array_types

_MAX_RESAMPLING = 100


class _TestError(AssertionError):
    """Base of the errors of test cases, with ways to raise them."""

    @classmethod
    def check(cls, expr: Any, message: str) -> None:
        """Raises the error if an expression is false."""
        if not expr:
            raise cls(message)

    @classmethod
    def fail(cls, message: str, exc: BaseException | None = None) -> NoReturn:
        """Raises the error, with the text of the error that caused it."""
        if exc is None:
            raise cls(message)
        raise cls(f"{message}\n\n(caused by)\n{type(exc).__name__}: {exc}") from exc

    @classmethod
    @contextlib.contextmanager
    def raise_if_fail(
        cls,
        message: str,
        error_types: type[BaseException] | tuple[type[BaseException], ...] = AssertionError,
    ) -> Iterator[None]:
        """Context manager: replaces errors of the given types by this class; see :meth:`fail`."""
        try:
            yield
        except error_types as error:
            cls.fail(message, error)


class FunctionTestError(_TestError):
    """A function is implemented wrongly.

    Example:
        >>> FunctionTestError.check(1 < 0, "1 must be less than 0")
        Traceback (most recent call last):
        mpchain.testing.function_link.FunctionTestError: 1 must be less than 0
    """


class LinkTestError(_TestError):
    """A link is implemented wrongly.

    Example:
        >>> with LinkTestError.raise_if_fail("the link has no b"):
        ...     assert L.Linear(3, 2, nobias=True).b is not None
        Traceback (most recent call last):
        mpchain.testing.function_link.LinkTestError: the link has no b
        ...
    """


class _DeviceTestCase(unittest.TestCase):
    """Base of the test cases: generates inputs, runs a function or link, and compares outputs."""

    _error = FunctionTestError
    contiguous = None
    dodge_nondifferentiable = False
    numerical_grad_dtype = np.float64
    backend_config: Any = None
    test_name: str | None = None
    forward_expected: Callable[..., Any]
    check_forward_options: dict[str, Any]
    check_backward_options: dict[str, Any]
    _options = ()  # names of attributes that hold dicts of options

    def __init__(self, *args, **kwargs):
        vars(self).update({name: {} for name in self._options})
        super().__init__(*args, **kwargs)

    def before_test(self, test_name: str) -> None:
        """Called before each test; raise :class:`unittest.SkipTest` to skip it."""

    def generate_inputs(self) -> tuple:
        """Returns a tuple of input arrays (NumPy)."""
        raise NotImplementedError("generate_inputs() is not implemented")

    def generate_grad_outputs(self, outputs_template: tuple) -> tuple:
        """Returns a tuple that has, for each output, a gradient of its shape and dtype or None."""
        return tuple(map(_random_like, outputs_template))

    def check_forward_outputs(self, outputs: tuple, expected_outputs: tuple) -> None:
        """Raises an error unless two tuples of arrays are close; subclasses may check more."""
        self._check_same_types(outputs, expected_outputs)
        failures = []
        for i, (y, expected) in enumerate(zip(outputs, expected_outputs)):
            try:
                assert_allclose(y, expected, **self.check_forward_options)
            except AssertionError as error:
                failures.append(f"Error details of output [{i}]:\n{error}")
        if failures:
            details = "\n\n".join(failures)
            raise self._error(f"Outputs do not match the expected values.\n{details}")

    def _check_same_types(self, outputs, expected):
        if [(y.shape, y.dtype) for y in outputs] != [(y.shape, y.dtype) for y in expected]:
            raise self._error(
                "Shapes and/or dtypes do not match\n"
                f"Expected shapes and dtypes: {_types(expected)}\n"
                f"Actual shapes and dtypes:   {_types(outputs)}"
            )

    def _begin(self, test_name, backend_config, skip_flag=None):
        if skip_flag is not None and getattr(self, skip_flag):
            raise unittest.SkipTest(f"{skip_flag} is set")
        self.test_name = test_name
        self.backend_config = backend_config or BackendConfig({})
        self.before_test(test_name)

    def _generate(self, method, *args):
        """Calls a method that makes arrays, and checks the arrays."""
        return _check_arrays(method, getattr(self, method)(*args))

    def _send(self, arrays):
        """Transfers arrays to the device; makes them noncontiguous if the test requires that."""
        if self.contiguous not in (None, "C"):
            raise ValueError(f"contiguous must be None or 'C', not {self.contiguous!r}")
        arrays = self.backend_config.get_array(arrays)
        return arrays if self.contiguous else tuple(map(_noncontiguous, arrays))

    def _run(self, forward, inputs):
        """Calls ``forward``; returns the outputs on the host. Raises if ``forward`` has modified
        its inputs."""
        arrays = self._send(_copies(inputs))
        ys = forward(*[None if x is None else Variable(x) for x in arrays])
        self._check_unmodified(inputs, arrays, "forward")
        return tuple(cuda.to_cpu(y.array) for y in ys)

    def _check_outputs(self, ys):
        if not isinstance(ys, tuple):
            raise self._error(f"`forward()` must return a tuple, not {type(ys)}.")
        for y in ys:
            if not isinstance(y, Variable):
                raise self._error(f"forward() must return a tuple of Variables.\nActual: {type(y)}")
        return ys

    def _expect(self, *args):
        """Calls ``forward_expected``; raises if the call has modified the last argument, the
        inputs."""
        *others, inputs = args
        copies = _copies(inputs)
        outputs = _check_arrays("forward_expected", self.forward_expected(*others, copies))
        self._check_unmodified(inputs, copies, "forward_expected")
        return outputs

    def _check_unmodified(self, originals, arrays, step):
        for i, (x, now) in enumerate(zip(originals, arrays)):
            if x is not None:
                now = cuda.to_cpu(now)
                if not np.array_equal(x, now, equal_nan=x.dtype.kind in "fc"):
                    raise self._error(
                        f"Input arrays have been modified during {step}.\n"
                        f"Input[{i}]:\nOriginal:\n{x}\nAfter {step}:\n{now}"
                    )

    def _check_gradients(self, what, check, options, sample):
        """Runs a gradient check on sampled data, and draws new data if a point is at a kink.

        Args:
            what: the name of the tested derivative, for messages.
            check: the function that runs the check.
            options: the user's options for ``check``.
            sample: a function that returns the positional arguments of ``check``.
        """
        dodge = self.dodge_nondifferentiable
        defaults = {"dtype": self.numerical_grad_dtype, "detect_nondifferentiable": dodge}
        last = None
        for _ in range(_MAX_RESAMPLING):
            args = sample()
            try:
                with self.backend_config:
                    return check(*args, **{**defaults, **options})
            except NondifferentiableError as error:
                last = error
            except AssertionError as error:
                self._error.fail(f"{what} is not implemented correctly", error)
        raise self._error(
            f"{what}: {_MAX_RESAMPLING} samples were all at nondifferentiable points: {last}"
        )


def _types(arrays):
    return ", ".join(f"{tuple(x.shape)}:{x.dtype}" for x in arrays)


def _copies(arrays):
    return tuple(None if x is None else x.copy() for x in arrays)


def _random_like(x):
    if x is None or not is_floating(x.dtype):
        return None
    return np.random.uniform(-1, 1, x.shape).astype(x.dtype)


def _check_arrays(method, arrays):
    if not isinstance(arrays, tuple):
        raise TypeError(f"`{method}()` must return a tuple, not {type(arrays)}.")
    # NumPy turns arrays of shape () into scalars.
    arrays = tuple(np.asarray(x) if isinstance(x, np.generic) else x for x in arrays)
    for x in arrays:
        if x is not None and not isinstance(x, get_array_types()):
            raise TypeError(f"{method}() must return a tuple of arrays or None, not of {type(x)}")
    return arrays


def _noncontiguous(x):
    """Returns an equal array as a reversed view with gaps, if it has more than one element."""
    if x is None or x.size <= 1:
        return x
    xp = cuda.get_array_module(x)
    with cuda.get_device_from_array(x):
        view = xp.empty([2 * n for n in x.shape], x.dtype)[(slice(None, None, -2),) * x.ndim]
        view[...] = x
    return view


class FunctionTestCase(_DeviceTestCase):
    """Base of test cases of a function: forward, backward and double backward.

    A subclass defines ``generate_inputs``, ``forward`` and ``forward_expected``; with
    :func:`inject_backend_tests` its tests run on several devices.

    Attributes:
        check_forward_options, check_backward_options, check_double_backward_options (dict): options
            (tolerances, ``eps``) of :func:`assert_allclose`, ``check_backward`` and
            ``check_double_backward``.
        skip_forward_test, skip_backward_test, skip_double_backward_test (bool): skip the test.
        dodge_nondifferentiable (bool): sample again if the inputs happen to be near a kink.
        numerical_grad_dtype: dtype of the numerical gradients, float64.
        contiguous: None makes inputs noncontiguous where possible; ``'C'`` makes them contiguous.
        test_name (str): the test that is running.
        backend_config (BackendConfig): the device and settings of that test.

    Example:
        >>> @testing.parameterize({"dtype": np.float32}, {"dtype": np.float64})
        ... class TestSquare(testing.FunctionTestCase):
        ...     def generate_inputs(self):
        ...         return np.random.uniform(-1, 1, (3, 2)).astype(self.dtype),
        ...
        ...     def forward(self, inputs, device):
        ...         return F.square(*inputs),
        ...
        ...     def forward_expected(self, inputs):
        ...         return inputs[0] ** 2,
    """

    skip_forward_test = False
    skip_backward_test = False
    skip_double_backward_test = False
    check_double_backward_options: dict[str, Any]
    _options = ("check_forward_options", "check_backward_options", "check_double_backward_options")

    def forward(self, inputs: tuple, device: Device) -> tuple:
        """Computes the tuple of output Variables from the tuple of input Variables."""
        raise NotImplementedError("forward() is not implemented")

    def forward_expected(self, inputs: tuple) -> tuple:
        """Computes the tuple of expected outputs (NumPy) from the tuple of inputs (NumPy)."""
        raise NotImplementedError("forward_expected() is not implemented")

    def generate_grad_grad_inputs(self, inputs_template: tuple) -> tuple:
        """Returns a tuple that has, for the gradient of each input, an array of its shape and dtype
        or None: the gradients of these gradients."""
        return tuple(map(_random_like, inputs_template))

    def _forward(self, *xs):
        return self._check_outputs(self.forward(xs, self.backend_config.device))

    def _sample(self):
        inputs = self._generate("generate_inputs")
        gys = self._generate("generate_grad_outputs", self._expect(inputs))
        return inputs, (self._forward, self._send(inputs), self._send(gys))

    def test_forward(self, backend_config: BackendConfig | None = None) -> None:
        """Compares outputs with the expected ones."""
        self._begin("test_forward", backend_config, "skip_forward_test")
        inputs = self._generate("generate_inputs")
        expected = self._expect(inputs)
        with self.backend_config:
            outputs = self._run(self._forward, inputs)
        self.check_forward_outputs(outputs, expected)

    def test_backward(self, backend_config: BackendConfig | None = None) -> None:
        """Compares gradients with numerical ones."""
        self._begin("test_backward", backend_config, "skip_backward_test")
        check, options = gradient_check.check_backward, self.check_backward_options
        self._check_gradients("backward", check, options, lambda: self._sample()[1])

    def test_double_backward(self, backend_config: BackendConfig | None = None) -> None:
        """Compares gradients of gradients with numerical ones."""
        self._begin("test_double_backward", backend_config, "skip_double_backward_test")

        def sample():
            inputs, args = self._sample()
            ggxs = self._generate("generate_grad_grad_inputs", inputs)
            return *args, self._send(ggxs)

        check, options = gradient_check.check_double_backward, self.check_double_backward_options
        self._check_gradients("double backward", check, options, sample)


class InitializerArgument:
    """An argument of a link's constructor, and the initializer that the argument should select.

    Args:
        argument_value: the argument, such as None for a default.
        expected_initializer: initializer, scalar or array.

    Example:
        >>> argument = InitializerArgument(None, mpchain.initializers.LeCunNormal())
        >>> link = L.Linear(3, 2, initialW=argument.argument_value)
    """

    def __init__(self, argument_value: InitialValue, expected_initializer: InitialValue):
        if expected_initializer is None:
            raise ValueError("InitializerArgument: expected_initializer must not be None")
        self.argument_value = argument_value
        self.expected_initializer = expected_initializer


def _argument(initializer):
    if isinstance(initializer, InitializerArgument):
        return initializer.argument_value
    if initializer is None:
        raise ValueError(
            "A None initializer must be wrapped in an InitializerArgument "
            "along with the initializer that None selects."
        )
    return initializer


class _LinkTestBase(_DeviceTestCase):
    _error = LinkTestError
    param_names = ()

    def generate_params(self) -> tuple:
        """Returns a tuple of initializers, scalars, arrays, or InitializerArguments."""
        return ()

    def create_link(self, initializers: tuple) -> Link:
        """Returns the link, made with initializers that ``generate_params`` returned."""
        raise NotImplementedError("create_link() is not implemented")

    def forward(self, link: Any, inputs: tuple, device: Device) -> tuple:
        """Computes the tuple of output Variables from the tuple of input Variables."""
        outputs = link(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _link(self, initializers):
        link = self.create_link(tuple(map(_argument, initializers)))
        if not isinstance(link, Link):
            raise TypeError(f"`create_link` must return an mpchain.Link object, not {type(link)}.")
        link.to_device(self.backend_config.device)
        return link

    def _forward_of(self, link):
        device = self.backend_config.device
        return lambda *xs: self._check_outputs(self.forward(link, xs, device))

    def _param(self, link, name):
        param = getattr(link, name, None)
        if not isinstance(param, Parameter):
            raise self._error(f"Link does not have a parameter named '{name}'.")
        return param


class LinkTestCase(_LinkTestBase):
    """Base of test cases of a link: forward, and backward to inputs and parameters.

    A subclass defines ``generate_inputs``, ``generate_params``, ``create_link`` and
    ``forward_expected``.

    Attributes:
        param_names (tuple of str): the parameters whose gradients are tested.
        check_forward_options, check_backward_options, skip_forward_test, skip_backward_test,
        dodge_nondifferentiable, numerical_grad_dtype, contiguous, test_name, backend_config:
            as for :class:`FunctionTestCase`.

    Example:
        >>> class TestLinear(testing.LinkTestCase):
        ...     param_names = ("W",)
        ...     def generate_inputs(self): return (np.random.randn(4, 3),)
        ...     def generate_params(self): return (np.random.randn(2, 3),)
        ...     def create_link(self, initializers): return L.Linear(3, 2, True, initializers[0])
        ...     def forward_expected(self, link, inputs): return (inputs[0] @ link.W.array.T,)
    """

    skip_forward_test = False
    skip_backward_test = False
    _options = ("check_forward_options", "check_backward_options")

    def forward_expected(self, link: object, inputs: tuple) -> tuple:
        """Computes the tuple of expected outputs (NumPy) from the link and NumPy inputs."""
        raise NotImplementedError("forward_expected() is not implemented")

    def test_forward(self, backend_config: BackendConfig | None = None) -> None:
        """Compares outputs with the expected ones."""
        self._begin("test_forward", backend_config, "skip_forward_test")
        inputs = self._generate("generate_inputs")
        with self.backend_config:
            link = self._link(self.generate_params())
            outputs = self._run(self._forward_of(link), inputs)
        link.to_device("@numpy")
        self.check_forward_outputs(outputs, self._expect(link, inputs))

    def test_backward(self, backend_config: BackendConfig | None = None) -> None:
        """Compares gradients with numerical ones."""
        self._begin("test_backward", backend_config, "skip_backward_test")

        def sample():
            inputs = self._generate("generate_inputs")
            with self.backend_config:
                link = self._link(self.generate_params())
                outputs = self._run(self._forward_of(link), inputs)
            params = tuple(self._param(link, name) for name in self.param_names)
            gys = self._send(self._generate("generate_grad_outputs", outputs))
            return self._forward_of(link), self._send(inputs), gys, params

        check, options = gradient_check.check_backward, self.check_backward_options
        self._check_gradients("backward", check, options, sample)


class LinkInitializersTestCase(_LinkTestBase):
    """Base of test cases of the arguments that initialize a link's parameters.

    A subclass defines ``generate_inputs``, ``generate_params``, ``create_link`` and
    ``get_initializers``.

    Attributes:
        param_names (tuple of str): the parameters, in the order of their initializers.
        check_initializers_options (dict): options of :func:`assert_allclose`.
        contiguous, test_name, backend_config: as for :class:`FunctionTestCase`.

    Example:
        >>> class TestInitialW(testing.LinkInitializersTestCase):
        ...     param_names = ("W",)
        ...     def generate_inputs(self): return (np.zeros((4, 3), np.float32),)
        ...     def generate_params(self): return (0,)
        ...     def create_link(self, initializers): return L.Linear(3, 2, True, initializers[0])
        ...     def get_initializers(self): return ([mpchain.initializers.Zero(), 1.0],)
    """

    _options = ("check_initializers_options",)
    check_initializers_options: dict[str, Any]

    @property
    def check_forward_options(self) -> dict[str, Any]:
        """Returns ``check_initializers_options``, under the name that the comparison reads."""
        return self.check_initializers_options

    def get_initializers(self) -> Sequence:
        """Returns, for each parameter, the initializers to test, which must be deterministic.

        While a parameter is tested, the other parameters get initializers of ``generate_params``.
        """
        raise NotImplementedError("get_initializers() is not implemented")

    def test_initializers(self, backend_config: BackendConfig | None = None) -> None:
        """Compares initialized parameters with arrays that the initializers fill directly."""
        self._begin("test_initializers", backend_config)
        for i, initializers in enumerate(self.get_initializers()):
            for initializer in initializers:
                self._check_initializer(i, initializer)

    def _check_initializer(self, i, initializer):
        initializers = list(self.generate_params())
        initializers[i] = initializer
        inputs = self._generate("generate_inputs")
        with self.backend_config:
            link = self._link(initializers)
            self._run(self._forward_of(link), inputs)
        param = cuda.to_cpu(self._param(link, self.param_names[i]).array)
        if isinstance(initializer, InitializerArgument):
            initializer = initializer.expected_initializer
        expected = Parameter(initializer, param.shape).array
        self.check_forward_outputs((param,), (expected,))
