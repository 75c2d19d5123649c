"""Every distribution and its methods, by names that mpchain and Chainer share.

``python distributions.py chainer FILE`` writes Chainer's results into ``FILE``.
"""

import importlib
import inspect
import sys
import warnings

import numpy as np

_x = np.array
_SHARES = _x([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]), _x([[0.4, 0.4, 0.2], [0.3, 0.6, 0.1]])
_POSITIVE = _x([0.7, 1.9]), _x([1.3, 0.8])
_LOC, _SCALE = _x([0.5, -0.2]), _x([1.0, 2.0])
_LOWER = _x([[1.0, 0.0], [0.5, 2.0]]), _x([[2.0, 0.0], [-0.5, 1.0]])
_ANY, _UNIT, _ABOVE = _x([1.0, -3.0]), _x([0.2, 0.9]), _x([2.5, 3.0])
_LOC_SCALE = {"loc": _LOC, "scale": _SCALE}, {"loc": _SCALE, "scale": _POSITIVE[0]}

CASES = {
    "Bernoulli": ({"p": _UNIT}, {"p": _POSITIVE[0] / 2}, _x([1.0, 0.0])),
    "Bernoulli soft": ({"p": _UNIT}, {"p": _POSITIVE[0] / 2}, _x([0.5, 0.25])),
    "Bernoulli checked": (
        {"p": _UNIT, "binary_check": True},
        {"p": _POSITIVE[0] / 2},
        _x([1.0, 0.5]),
    ),
    "Bernoulli logit": ({"logit": _LOC}, {"logit": _SCALE}, _x([1.0, 0.0])),
    "Beta": (
        {"a": _POSITIVE[0], "b": _POSITIVE[1]},
        {"a": _POSITIVE[1], "b": _POSITIVE[0]},
        _UNIT,
    ),
    "Categorical": ({"p": _SHARES[0]}, {"p": _SHARES[1]}, _x([0, 2])),
    "Categorical logit": ({"logit": _SHARES[0]}, {"logit": _SHARES[1]}, _x([0, 2])),
    "Cauchy": (*_LOC_SCALE, _ANY),
    "Chisquare": ({"k": _POSITIVE[0]}, {"k": _POSITIVE[1]}, _ABOVE),
    "Dirichlet": ({"alpha": 5 * _SHARES[0]}, {"alpha": 5 * _SHARES[1]}, _SHARES[1]),
    "Exponential": ({"lam": _POSITIVE[0]}, {"lam": _POSITIVE[1]}, _ABOVE),
    "Gamma": (
        {"k": _POSITIVE[0], "theta": _POSITIVE[1]},
        {"k": _POSITIVE[1], "theta": _POSITIVE[0]},
        _ABOVE,
    ),
    "Geometric": ({"p": _UNIT}, {"p": _UNIT[::-1]}, _x([3.0, 1.0])),
    "Gumbel": (*_LOC_SCALE, _ANY),
    "Laplace": (*_LOC_SCALE, _ANY),
    "LogNormal": (
        {"mu": _LOC, "sigma": _SCALE},
        {"mu": _SCALE, "sigma": _POSITIVE[0]},
        _ABOVE,
    ),
    "MultivariateNormal": (
        {"loc": _LOC, "scale_tril": _LOWER[0]},
        {"loc": _SCALE, "scale_tril": _LOWER[1]},
        _ANY,
    ),
    "Normal": (*_LOC_SCALE, _ANY),
    "Normal log_scale": (
        {"loc": _LOC, "log_scale": _SCALE},
        {"loc": _SCALE, "log_scale": _LOC},
        _ANY,
    ),
    "OneHotCategorical": ({"p": _SHARES[0]}, {"p": _SHARES[1]}, np.eye(3)[[2, 0]]),
    "Pareto": (
        {"scale": _POSITIVE[0], "alpha": _ABOVE},
        {"scale": _POSITIVE[0] / 2, "alpha": _POSITIVE[1]},
        _ABOVE,
    ),
    "Poisson": ({"lam": _POSITIVE[0]}, {"lam": _POSITIVE[1]}, _x([3.0, 0.0])),
    "Uniform": ({"low": _LOC, "high": _ABOVE}, {"low": _LOC - 1, "high": _ABOVE + 1}, _x([1, 2.0])),
    "Uniform loc": (
        {"loc": _LOC, "scale": _ABOVE},
        {"loc": _LOC - 1, "scale": _ABOVE + 2},
        _x([1.0, 2.0]),
    ),
}
"""For each class and variant: the arguments, the arguments of another distribution, and points."""

PROPERTIES = "mean mode variance stddev covariance entropy".split()
FUNCTIONS = "log_prob prob cdf log_cdf survival_function log_survival_function".split()


class Framework:
    """The modules of mpchain or Chainer."""

    def __init__(self, name):
        self.module = importlib.import_module(name)
        self.distributions = importlib.import_module(f"{name}.distributions")

    def results(self):
        """Returns the results of all defined methods: arrays and texts by case and method."""
        found = {}
        for case in CASES:
            # Chainer's triangular matrices support only single precision.
            dtypes = ("float32", "float64") if case != "MultivariateNormal" else ("float32",)
            for dtype in dtypes:
                distributions = self.make(case, dtype)
                found |= self.results_of(f"{case}/{dtype}", *distributions, dtype)
        independent = [self.distributions.Independent(d) for d in self.matrices()]
        return found | self.results_of("Independent/float64", *independent, "float64")

    def make(self, case, dtype):
        """Returns two distributions of one class."""
        cls = getattr(self.distributions, case.split()[0])
        return [
            cls(**{n: self.variable(v, dtype) for n, v in arguments.items()})
            for arguments in CASES[case][:2]
        ]

    def variable(self, value, dtype):
        is_array = isinstance(value, np.ndarray)
        return self.module.Variable(value.astype(dtype)) if is_array else value

    def matrices(self):
        """Returns two batches (2, 2) of normal distributions."""
        scale = np.exp(_LOWER[0])
        return [self.distributions.Normal(loc, scale) for loc in _LOWER]

    def results_of(self, name, one, other, dtype):
        found = {
            f"{name}/shapes": f"{one.batch_shape} {one.event_shape}",
            f"{name}/params": " ".join(one.params),
        }
        x = CASES.get(name.split("/")[0], (None, None, _LOWER[1]))[2]
        x = x.astype(dtype) if x.dtype.kind == "f" else x
        computations = {p: lambda p=p: getattr(one, p) for p in (*PROPERTIES, "support")}
        computations |= {f: lambda f=f: getattr(one, f)(x) for f in FUNCTIONS}
        computations["icdf"] = lambda: one.icdf(_UNIT.astype(dtype))
        computations["kl_divergence"] = lambda: self.module.kl_divergence(one, other)
        computations["sample"] = lambda: self.shape_of_samples(one)
        for method, compute in computations.items():
            try:
                y = compute()
            except (NotImplementedError, KeyError, RuntimeError):
                continue
            found[f"{name}/{method}"] = y if isinstance(y, str) else y.array
        found |= {f"{name}/gradient of {p}": g for p, g in self.gradients(one, x).items()}
        return found

    def shape_of_samples(self, one):
        x = one.sample((4, 5))
        return f"{x.shape} {x.dtype}"

    def gradients(self, one, x):
        """Returns the gradients of log_prob with respect to the parameters that are leaves."""
        y = one.log_prob(x)
        for p in one.params.values():
            p.cleargrad()
        y.grad = np.ones_like(y.array)
        y.backward()
        leaves = {n: p for n, p in one.params.items() if p.creator is None}
        return {n: p.grad for n, p in leaves.items() if p.grad is not None}

    def signatures(self):
        """Returns the names and defaults of the positional arguments, by class."""
        found = {}
        for name in sorted({case.split()[0] for case in CASES} | {"Independent"}):
            parameters = inspect.signature(getattr(self.distributions, name)).parameters.values()
            positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
            found[name] = ", ".join(map(str, positional))
        return found


def main(name, file):
    warnings.simplefilter("ignore")
    framework = Framework(name)
    signatures = {f"signature/{n}": text for n, text in framework.signatures().items()}
    np.savez(file, **framework.results(), **signatures)


if __name__ == "__main__":
    main(*sys.argv[1:])
