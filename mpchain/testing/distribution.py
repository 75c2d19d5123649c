"""Test cases that compare distributions with SciPy's."""

import unittest
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.distributions import Distribution
from mpchain.gradient_check import assert_allclose
from mpchain.testing import attr
from mpchain.typing import Array
from mpchain.variable import Variable, as_array

_PROPERTIES = {"mean": "mean", "variance": "var", "stddev": "std", "covariance": "cov"}
_PROPERTIES |= {"entropy": "entropy"}
_FUNCTIONS = {
    "cdf": ("cdf", "cdf"),
    "icdf": ("icdf", "ppf"),
    "log_cdf": ("log_cdf", "logcdf"),
    "survival": ("survival_function", "sf"),
    "log_survival": ("log_survival_function", "logsf"),
    "prob": ("prob", None),
    "log_prob": ("log_prob", None),
}
_OF_SHAPES = ("batch_shape", "event_shape", "params", "sample", "support")
_N_SAMPLES = 1000


class distribution_unittest(unittest.TestCase):
    """Base of test cases that compare each method of a distribution with SciPy's, on CPU and GPU.

    A subclass defines ``setUp_configure``, which sets the attributes; most often it is decorated
    with :func:`parameterize` over ``shape``, ``sample_shape`` and ``is_variable``, and with
    :func:`fix_random`.

    Attributes:
        dist: the class of distributions.
        params (dict): the distribution's parameters: arrays of batch shape ``shape`` (and further
            axes).
        options (dict): further arguments of the distribution.
        scipy_dist: SciPy's distribution, such as ``scipy.stats.norm``.
        scipy_params (dict): the parameters of SciPy's distribution.
        scipy_onebyone (bool): whether SciPy's functions take parameters and points of only one
            distribution.
        test_targets (set of str): names of methods and properties to test ("survival" and
            "log_survival" for the survival functions); other tests are skipped.
        shape, event_shape, sample_shape (tuple of int): the shapes of batch, event and points.
        is_variable (bool): whether parameters and points are Variables.
        continuous (bool): whether SciPy's distribution has a density.
        support (str): the expected support.
        check_options (dict): options of :func:`assert_allclose`.

    Example:
        >>> class TestExponential(distribution_unittest):
        ...     def setUp_configure(self):
        ...         self.dist, self.scipy_dist = distributions.Exponential, scipy.stats.expon
        ...         self.params = {"lam": np.array([0.5, 2.0])}
        ...         self.scipy_params = {"scale": 1 / self.params["lam"]}
        ...         self.shape, self.support = (2,), "positive"
        ...         self.test_targets = {"log_prob", "mean", "sample", "support"}
    """

    dist: Any
    scipy_dist: Any
    scipy_onebyone = False
    continuous = True
    is_variable = False
    support = "real"
    shape = event_shape = sample_shape = ()

    def setUp(self) -> None:
        self.params, self.scipy_params, self.options = {}, {}, {}
        self.test_targets, self.check_options = set(), {}
        self.setUp_configure()
        # NumPy's generators and functions make scalars where the shape is ().
        self.params = {name: np.asarray(p) for name, p in self.params.items()}
        self.scipy_params = {name: np.asarray(p) for name, p in self.scipy_params.items()}
        unknown = set(self.test_targets) - {*_PROPERTIES, *_FUNCTIONS, *_OF_SHAPES}
        if unknown:
            raise ValueError(
                f"distribution_unittest: unknown test_targets {sorted(unknown)}; known are "
                f"{sorted([*_PROPERTIES, *_FUNCTIONS, *_OF_SHAPES])}"
            )

    def setUp_configure(self) -> None:
        """Sets the attributes."""
        raise NotImplementedError("setUp_configure() is not implemented")

    def sample_for_test(self) -> Array:
        """Returns the points at which to compare: array (*sample_shape, *shape, *event_shape)."""
        return as_array(self.cpu_dist.sample(self.sample_shape))

    @property
    def cpu_dist(self) -> Distribution:
        """The distribution, on the CPU."""
        return self._made(lambda x: x)

    @property
    def gpu_dist(self) -> Distribution:
        """The distribution, on the GPU."""
        return self._made(cuda.to_gpu)

    def _made(self, send):
        wrap = (lambda x: Variable(send(x))) if self.is_variable else send
        return self.dist(**{n: wrap(p) for n, p in self.params.items()}, **self.options)

    def _check(self, target, send):
        if target not in self.test_targets:
            raise unittest.SkipTest(f"{target} is not in test_targets")
        distribution = self._made(send)
        if target in _PROPERTIES:
            y = getattr(distribution, target)
            expected = self._moment(lambda d: _value(d, _PROPERTIES[target]))
        elif target in _FUNCTIONS:
            y, expected = self._values(distribution, target, send)
        else:
            getattr(self, f"_check_{target}")(distribution)
            return
        if not isinstance(y, Variable):
            raise AssertionError(f"{target} must be a Variable, not {type(y)}")
        assert_allclose(y, expected, **self.check_options)

    def _values(self, distribution, target, send):
        """Returns the values of the distribution and of SciPy's at the same points."""
        name, of_scipy = _FUNCTIONS[target]
        if of_scipy is None:
            kind = "pdf" if self.continuous else "pmf"
            of_scipy = kind if target == "prob" else f"log{kind}"
        if target == "icdf":
            x = np.random.uniform(0.1, 0.9, self.sample_shape + self.shape)
            x = np.asarray(x, next(iter(self.params.values())).dtype)
        else:
            x = np.asarray(self.sample_for_test())
        expected = self._scipy_values(of_scipy, x)
        x = send(x)
        return getattr(distribution, name)(Variable(x) if self.is_variable else x), expected

    def _scipy_values(self, name, x):
        """Calls a function of SciPy's distribution at all points."""
        if not self.scipy_onebyone:
            return getattr(self.scipy_dist(**self.scipy_params), name)(x)
        values = [
            [getattr(self._scipy_one(i), name)(x[(*j, *i)]) for i in np.ndindex(*self.shape)]
            for j in np.ndindex(*self.sample_shape)
        ]
        return np.reshape(values, self.sample_shape + self.shape)

    def _moment(self, compute):
        """Calls a function with SciPy's distribution, or with each one if there are several."""
        if not self.scipy_onebyone:
            return compute(self.scipy_dist(**self.scipy_params))
        found = np.stack([compute(self._scipy_one(i)) for i in np.ndindex(*self.shape)])
        return found.reshape(self.shape + found.shape[1:])

    def _scipy_one(self, i):
        return self.scipy_dist(**{name: p[i] for name, p in self.scipy_params.items()})

    def _check_batch_shape(self, distribution):
        self.assertEqual(distribution.batch_shape, self.shape)

    def _check_event_shape(self, distribution):
        self.assertEqual(distribution.event_shape, self.event_shape)

    def _check_support(self, distribution):
        self.assertEqual(distribution.support, self.support)

    def _check_params(self, distribution):
        self.assertEqual(set(distribution.params), set(self.params))
        for name, p in distribution.params.items():
            assert_allclose(p, np.broadcast_to(self.params[name], p.shape))

    def _check_on_gpu(self, target):
        # A check in a decorator would load CuPy when this module is imported.
        reason = attr.why_no_gpus(1)
        if reason:
            self.skipTest(reason)
        self._check(target, cuda.to_gpu)

    def _check_sample(self, distribution):
        """Checks the shapes of samples, and their means: within five deviations of SciPy's."""
        lead = self.sample_shape
        self.assertEqual(distribution.sample(lead).shape, lead + self.shape + self.event_shape)
        x = cuda.to_cpu(distribution.sample(_N_SAMPLES).array).astype(np.float64)
        mean = self._moment(lambda d: _value(d, "mean"))
        variance = self._moment(_variance)
        error = abs(x.mean(axis=0) - mean)
        if not (error <= 5 * np.sqrt(variance / _N_SAMPLES)).all():
            raise AssertionError(
                f"the means of {_N_SAMPLES} samples are {x.mean(axis=0)}, with standard deviation "
                f"{np.sqrt(variance / _N_SAMPLES)}, but should be {mean}"
            )


def _value(distribution, name) -> Any:
    """Returns a property such as the mean, which may be a method or an attribute."""
    value = getattr(distribution, name)
    return value() if callable(value) else value


def _variance(distribution):
    if hasattr(distribution, "var"):
        return distribution.var()
    return np.diagonal(_value(distribution, "cov"), axis1=-2, axis2=-1)


def _add_tests():
    for target in (*_PROPERTIES, *_FUNCTIONS, *_OF_SHAPES):

        def on_cpu(self, target=target):
            self._check(target, lambda x: x)

        def on_gpu(self, target=target):
            self._check_on_gpu(target)

        setattr(distribution_unittest, f"test_{target}_cpu", on_cpu)
        setattr(distribution_unittest, f"test_{target}_gpu", attr.mark(on_gpu, "gpu"))


_add_tests()
