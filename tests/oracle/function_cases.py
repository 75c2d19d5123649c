"""Calls of every function that Chainer 7.8.1 has, as text that both sides can read.

A case is a function's name, the text of its arguments, and what the names in that text stand for:
a shape (normal numbers), a list (a constant array of integers or truth values), or one of
the draws below. Gradients are compared for every array of real numbers that is not ``fixed``.
"""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """One call.

    Attributes:
        name: unique, for people.
        function: the function's name.
        arguments: what stands between its parentheses; ``F``, ``np`` and ``utils`` mean the
            framework's functions, NumPy and the framework's utils.
        arrays: by name, how each array is drawn.
        config: entries of the configuration during the call.
        mixed: names of arrays that are float16 while the others are float32, in one more run.
        loose: factor on the tolerance, for what magnifies rounding.
        forward_only: whether the gradient means nothing.
        dtypes: of the arrays, one run for each.
        note: what Chainer does wrong; then only what is right there is compared.
        wrong: what of Chainer's results is wrong: ``"forward"``, ``"gradient"``, each also for one
            dtype (``"gradient float16"``), or ``"infinite"`` where only its infinities are.
    """

    name: str
    function: str
    arguments: str
    arrays: dict[str, Any]
    config: dict[str, Any]
    mixed: str
    loose: float
    forward_only: bool
    dtypes: tuple
    note: str
    wrong: tuple

    def draw(self, dtype):
        """Returns name → (array, whether its gradient is compared).

        Real numbers are rounded to float16 first, so that every dtype computes the same thing.
        """
        random = np.random.RandomState(zlib.crc32(self.name.encode()))
        drawn = {}
        for name, spec in self.arrays.items():
            array, variable = as_draw(spec).take(random)
            if array.dtype.kind == "f":
                array = array.astype(np.float16).astype(self.dtype_of(name, dtype))
            drawn[name] = (array, variable)
        return drawn

    def dtype_of(self, name, dtype):
        if dtype != "mixed":
            return dtype
        return "float16" if name in self.mixed.split() else "float32"


class Draw(NamedTuple):
    """How an array comes to be, and whether it is a Variable."""

    make: Callable
    variable: bool = True

    def take(self, random):
        return np.asarray(self.make(random)), self.variable


def as_draw(spec):
    """A shape stands for normal numbers, a list for a constant."""
    if isinstance(spec, Draw):
        return spec
    if isinstance(spec, tuple):
        return Draw(lambda random: random.randn(*spec))
    return Draw(lambda random: as_int32(np.array(spec)), variable=False)


def as_int32(array):
    return array.astype(np.int32) if array.dtype.kind == "i" else array


def fixed(spec):
    """The same, but an array without gradient."""
    return as_draw(spec)._replace(variable=False)


def uniform(low, high, *shape):
    """Uniform numbers."""
    return Draw(lambda random: random.uniform(low, high, shape))


def values(*numbers):
    """These real numbers."""
    return Draw(lambda random: np.array(numbers, np.float64))


def integers(high, *shape, low=0):
    """A constant array of integers below ``high``."""
    return Draw(lambda random: random.randint(low, high, shape).astype(np.int32), variable=False)


def mask(ratio, *shape):
    """Zeros with a given probability, the others scaled so that the mean is kept."""
    return Draw(lambda random: (random.rand(*shape) >= ratio) / (1 - ratio), variable=False)


def regular(n, *batch):
    """Matrices far from singular."""
    return Draw(lambda random: random.randn(*batch, n, n) + 3 * np.eye(n))


def positive_definite(n):
    """A symmetric matrix with positive eigenvalues."""

    def make(random):
        factor = random.randn(n, n)
        return np.round(factor @ factor.T + n * np.eye(n), 1)

    return Draw(make)


CASES = []
ALL = ("float16", "float32", "float64")


def case(
    function, arguments="x", *, config=None, mixed="", loose=1, forward_only=False,
    dtypes=ALL, note="", wrong=(), **arrays,
):  # fmt: skip
    """Adds a case; further keywords are the arrays."""
    wrong = tuple(filter(None, [wrong])) if isinstance(wrong, str) else wrong
    text = f"{function}({arguments})" + "".join(f" [{k}={v}]" for k, v in (config or {}).items())
    number = sum(earlier.name.split(" #")[0] == text for earlier in CASES) + 1
    name = text if number == 1 else f"{text} #{number}"
    CASES.append(
        Case(
            name, function, arguments, arrays, config or {}, mixed, loose, forward_only,
            tuple(dtypes) + (("mixed",) if mixed else ()), note, wrong,
        )
    )  # fmt: skip


TEST = {"train": False}
KINKS = values(-3.0, -2.5, -1.0, 0.0, 1.0, 2.5, 3.0, 6.0, 20.0, 25.0)

# Arithmetic, elementwise mathematics
case("add", "x, y", x=(2, 3), y=(2, 3), mixed="x")
case("add", "x, y", x=(2, 3), y=(3,))
case("add", "x, y, z", x=(2, 3), y=(2, 3), z=(2, 3))
case("add", "x, x", x=(2, 3))
case("add", "x, 2", x=(2, 3))
case("identity", "x", x=(2, 3))
case("identity", "x, y", x=(2, 3), y=(2,))
for name in ("absolute", "sign", "ceil", "fix", "floor"):
    case(name, x=(3, 4))
    case(name, x=values(-1.5, -1.0, -0.5, 0.0, 0.5, 1.0))
for name in ("sin", "cos", "tan", "sinh", "cosh", "exp", "expm1", "arctan", "square", "tanh"):
    case(name, x=(3, 4))
    case(name, x=())
for name in ("log", "log10", "log2", "sqrt", "rsqrt"):
    case(name, x=uniform(0.1, 4, 3, 4))
case("log1p", x=uniform(-0.8, 4, 3, 4))
for name in ("arcsin", "arccos", "arctanh"):
    case(name, x=uniform(-0.9, 0.9, 3, 4))
case("arctan2", "x, y", x=(3, 4), y=(3, 4))
for name in ("erf", "erfc", "erfcx", "ndtr", "log_ndtr"):
    case(name, x=(3, 4))
    case(name, x=values(-4.0, -2.0, 0.0, 2.0, 4.0), dtypes=ALL[1:], loose=10)
case("log_ndtr", x=values(-100.0, -20.0, -10.0, 10.0), dtypes=ALL[1:], loose=10)
case("erfcx", x=values(10.0, 30.0), dtypes=ALL[1:])
case("erfinv", x=uniform(-0.9, 0.9, 3, 4), loose=4)
case("erfcinv", x=uniform(0.1, 1.9, 3, 4), loose=4)
case("ndtri", x=uniform(0.1, 0.9, 3, 4), loose=4)
for name in ("lgamma", "digamma"):
    case(name, x=uniform(0.3, 6, 3, 4), loose=4)
    case(name, x=uniform(-1.8, -1.2, 3), loose=10, dtypes=ALL[1:])
case("polygamma", "n, x", n=[0, 1, 2, 3], x=uniform(0.5, 5, 4), loose=4)
case("polygamma", "n, x", n=[[1, 2, 3]], x=uniform(0.5, 5, 1, 3), loose=4)
case("zeta", "x, q", x=fixed(uniform(1.5, 5, 4)), q=uniform(0.5, 5, 4), loose=4)
case("fmod", "x, y", x=(3, 4), y=uniform(0.5, 1.5, 3, 4), dtypes=ALL[1:])
case("fmod", "x, y", x=(3, 4), y=uniform(-1.5, -0.5, 3, 4), dtypes=ALL[1:])
case("clip", "x, -0.5, 1.0", x=(3, 4))
case("clip", "x, -0.5, 1.0", x=values(-0.5, 1.0, 0.0, -1.0, 2.0))
case("clip", "x, None, 1.0", x=(3, 4))
case("clip", "x, -0.5, None", x=(3, 4))
for name in ("maximum", "minimum"):
    case(name, "x, y", x=(3, 4), y=(3, 4))
    case(name, "x, y", x=(3, 4), y=(4,))
    case(name, "x, y", x=values(1.0, 2.0, 3.0), y=values(1.0, 3.0, 2.0))
    case(name, "x, y", x=(3,), y=(3,), mixed="x")
case("linear_interpolate", "p, x, y", p=(3, 4), x=(3, 4), y=(3, 4))
for name in ("bias", "scale"):
    case(name, "x, y", x=(2, 3, 4), y=(3,))
    case(name, "x, y", x=(2, 3, 4), y=(3, 4))
    case(name, "x, y, axis=0", x=(2, 3, 4), y=(2, 3))
    case(name, "x, y, axis=0", x=(2, 3), y=(2, 3))
for name in ("squared_difference", "squared_error", "absolute_error"):
    case(name, "x, y", x=(3, 4), y=(3, 4))
for name in ("mean_squared_error", "mean_absolute_error"):
    case(name, "x, y", x=(3, 4), y=(3, 4))
    case(name, "x, y", x=(), y=())
case("absolute_error", "x, y", x=values(1.0, 2.0), y=values(1.0, 0.0))
case("mean_absolute_error", "x, y", x=values(1.0, 2.0), y=values(1.0, 0.0))

# Activation
for name in ("relu", "sigmoid", "hard_sigmoid", "relu6", "clipped_relu", "elu", "selu", "softplus",
             "leaky_relu"):  # fmt: skip
    case(name, x=(3, 4))
    case(name, x=KINKS)
case("sigmoid", x=values(-1000.0, 1000.0))
case("softplus", x=values(-1000.0, 1000.0))
case("clipped_relu", "x, z=0.5", x=(3, 4))
case("elu", "x, alpha=0.3", x=(3, 4))
case("selu", "x, alpha=0.3, scale=2.0", x=(3, 4))
case("softplus", "x, beta=2.5", x=(3, 4))
case("leaky_relu", "x, slope=0.1", x=(3, 4))
case("leaky_relu", "x, slope=-0.1", x=(3, 4))
case("crelu", x=(2, 3, 4))
case("crelu", "x, axis=-1", x=(2, 3))
case("maxout", "x, 2", x=(3, 6))
case("maxout", "x, 3, axis=2", x=(2, 3, 6))
case("prelu", "x, W", x=(2, 3, 4), W=(3,))
case("prelu", "x, W", x=(2, 3, 4), W=(3, 4))
case("prelu", "x, W", x=(2, 3), W=())
case("rrelu", "x, r=r", x=(3, 4), r=fixed(uniform(0.125, 0.33, 3, 4)))
case("rrelu", "x, 0.1, 0.5, r=r, return_r=True", x=(3, 4), r=fixed(uniform(0.125, 0.33, 3, 4)))
case("rrelu", config=TEST, x=(3, 4))
case("swish", "x, beta", x=(2, 3, 4), beta=(3, 4))
case("swish", "x, beta", x=(2, 3), beta=())
for name in ("softmax", "log_softmax"):
    case(name, x=(2, 3))
    case(name, x=(2, 3, 4))
    case(name, "x, axis=-1", x=(2, 3, 4))
    case(name, "x, axis=0", x=(3, 4))
    case(name, x=uniform(-300, 300, 3, 4))
case("lstm", "c, x", c=(3, 2), x=(3, 8))
case("lstm", "c, x", c=(3, 2), x=(2, 8))
case("lstm", "c, x", c=(3, 2, 2), x=(3, 8, 2))
case("lstm", "c, x", c=(3, 2), x=(0, 8))
case("slstm", "c1, c2, x1, x2", c1=(3, 2), c2=(3, 2), x1=(3, 8), x2=(3, 8))
case("tree_lstm", "c, x", c=(3, 2), x=(3, 8))
case("tree_lstm", "c1, c2, x", c1=(3, 2), c2=(3, 2), x=(3, 10))
case("tree_lstm", "c1, c2, c3, x", c1=(3, 2), c2=(3, 2), c3=(3, 2), x=(3, 12))

# Reductions, argmax, cumulation
for name in ("sum", "mean", "average", "max", "min", "prod"):
    case(name, x=(2, 3, 4))
    case(name, "x, axis=1", x=(2, 3, 4))
    case(name, "x, axis=(0, -1), keepdims=True", x=(2, 3, 4))
    case(name, "x, axis=(), keepdims=False", x=(2, 3))
for name in ("max", "min"):
    case(name, x=values(1.0, 2.0, 2.0, 1.0))
    case(name, "F.reshape(x, (2, 3)), axis=1", x=values(1.0, 2.0, 2.0, 1.0, 1.0, 2.0))
case("prod", x=values(0.0, 2.0, 3.0))
case("prod", x=values(0.0, 2.0, 0.0))
for name in ("mean", "average"):
    case(name, "x, axis=1, weights=w", x=(2, 3, 4), w=uniform(0.5, 2, 3))
    case(name, "x, weights=w", x=(2, 3), w=uniform(0.5, 2, 2, 3))
case("mean", x=uniform(30000, 60000, 4), dtypes=("float16",))
case("sum", x=uniform(0, 1, 40, 100), dtypes=ALL)
case("logsumexp", x=(2, 3, 4))
case("logsumexp", "x, axis=1", x=(2, 3, 4))
case("logsumexp", "x, axis=(0, 2)", x=(2, 3, 4))
case("logsumexp", "x, axis=1", x=uniform(-1000, 1000, 2, 3))
for name in ("argmax", "argmin"):
    case(name, x=(2, 3, 4))
    case(name, "x, axis=1", x=(2, 3, 4))
    case(name, "x, axis=-1", x=(2, 3))
for name in ("cumsum", "cumprod"):
    case(name, x=(2, 3))
    case(name, "x, axis=0", x=(3, 4))
    case(name, "x, axis=-1", x=(2, 3, 4))
case("cumprod", x=values(2.0, 0.0, 3.0, 0.0, 1.0))
case("batch_l2_norm_squared", x=(3, 4))
case("batch_l2_norm_squared", x=(3, 2, 4))
case("sum_to", "x, (3,)", x=(2, 3))
case("sum_to", "x, (2, 1, 4)", x=(2, 3, 4))
case("sum_to", "x, ()", x=(2, 3))

# Products and linear algebra
case("matmul", "x, y", x=(2, 3), y=(3, 4), mixed="x")
case("matmul", "x, y, transa=True, transb=True", x=(3, 2), y=(4, 3))
case("matmul", "x, y", x=(3,), y=(3,))
case("matmul", "x, y", x=(2, 3), y=(3,))
case("matmul", "x, y", x=(3,), y=(3, 2))
case("matmul", "x, y, transa=True", x=(5, 3, 2), y=(5, 3, 4))
case("matmul", "x, y", x=(5, 1, 2, 3), y=(2, 3, 4))
case("batch_matmul", "x, y", x=(2, 3, 4), y=(2, 4, 2))
case("batch_matmul", "x, y, transa=True, transb=True", x=(2, 4, 3), y=(2, 2, 4))
case("batch_matmul", "x, y", x=(2, 3), y=(2, 1, 4))
case("batch_matmul", "x, y, transa=True", x=(2, 3), y=(2, 3))
case("tensordot", "x, y", x=(2, 3, 4), y=(3, 4, 5))
case("tensordot", "x, y, axes=1", x=(2, 3), y=(3, 4))
case("tensordot", "x, y, axes=0", x=(2,), y=(3,))
case("tensordot", "x, y, axes=([0, 2], [1, 0])", x=(2, 3, 4), y=(4, 2, 5))
case("tensordot", "x, y, axes=(1, 0)", x=(2, 3), y=(3, 4))
case("einsum", "'ij,jk->ik', x, y", x=(2, 3), y=(3, 4))
case("einsum", "'ij,jk', x, y", x=(2, 3), y=(3, 4))
case("einsum", "'...ij,...jk->...ik', x, y", x=(5, 2, 3), y=(5, 3, 4))
case("einsum", "'...ij,...jk->...ik', x, y", x=(5, 2, 3), y=(3, 4), note="no ellipsis is broadcast")
case("einsum", "'ii->i', x", x=(3, 3))
case("einsum", "'ii', x", x=(3, 3))
case("einsum", "'ij->', x", x=(2, 3))
case("einsum", "'i,j,ij->ji', x, y, z", x=(2,), y=(3,), z=(2, 3))
case("einsum", "x, [0, 1], y, [1, 2], [2, 0]", x=(2, 3), y=(3, 4))
case("einsum", "x, [0, Ellipsis], y, [0]", x=(2, 3), y=(2,))
for name in ("inv", "det"):
    case(name, x=regular(3), loose=20, dtypes=ALL[1:])
for name in ("batch_inv", "batch_det"):
    case(name, x=regular(3, 2), loose=20, dtypes=ALL[1:])
case("cholesky", x=positive_definite(3), loose=10, dtypes=ALL[1:])
SPARSE = {"row": [0, 2, 1, 3], "col": [1, 0, 2, 2], "data": fixed((4,))}
COO = "(matrix := utils.CooMatrix(data, row, col, (4, 3), requires_grad=True))"
case("sparse_matmul", f"{COO}, y", **SPARSE, y=(3, 2))
case("sparse_matmul", f"{COO}, y, transa=True", **SPARSE, y=(4, 2))
case("sparse_matmul", f"y, {COO}, transa=True, transb=True", **SPARSE, y=(3, 5))
case("sparse_matmul", f"y, {COO}", **SPARSE, y=(5, 4))
BATCH = "(matrix := utils.CooMatrix(data, row, col, (3, 3), requires_grad=True))"
case("sparse_matmul", f"{BATCH}, y", data=fixed((2, 3)), row=[[0, 1, 2], [2, 2, 0]],
     col=[[0, 0, 2], [1, 0, 2]], y=(2, 3, 4))  # fmt: skip
case("fft", "(x, y)", x=(2, 8), y=(2, 8), dtypes=ALL[1:])
case("fft", "(x, y)", x=(3,), y=(3,), dtypes=ALL[1:])
case("ifft", "(x, y)", x=(2, 8), y=(2, 8), dtypes=ALL[1:])

# Arrays
case("as_strided", "x, (3, 2), (1, 2)", x=(6,))
case("as_strided", "x, (3, 3), (1, 1)", x=(6,))
case("as_strided", "x, (2, 2), (3, 1), 1", x=(2, 3))
case("broadcast", "x, y, z", x=(2, 1, 3), y=(4, 1), z=())
case("broadcast_to", "x, (4, 2, 3)", x=(2, 1))
case("cast", "x, 'float64'", x=(2, 3))
case("cast", "x, 'float16'", x=(2, 3))
case("cast", "x, np.int32", x=(2, 3), forward_only=True)
case("concat", "[x, y, z]", x=(2, 3), y=(2, 1), z=(2, 2))
case("concat", "(x, y), axis=-1", x=(2, 3, 1), y=(2, 3, 2))
case("concat", "(x, y), axis=0", x=(0, 3), y=(2, 3))
case("copy", "x, -1", x=(2, 3))
case("copy", "x, '@numpy'", x=(2, 3))
case("depth2space", "x, 2", x=(1, 8, 3, 2))
case("space2depth", "x, 2", x=(1, 2, 6, 4))
case("diagonal", x=(3, 4))
case("diagonal", "x, offset=1, axis1=2, axis2=0", x=(3, 2, 4))
case("diagonal", "x, offset=-1", x=(3, 4))
case("dstack", "[x, y]", x=(2, 3, 1), y=(2, 3, 2))
case("dstack", "[x, y]", x=(3,), y=(3,))
case("dstack", "[x, y]", x=(2, 3), y=(2, 3))
for name in ("hstack", "vstack", "dstack"):
    case(name, "[x, y]", x=(), y=())
for name in ("hstack", "vstack"):
    case(name, "[x, y]", x=(2, 3), y=(2, 3))
    case(name, "[x, y]", x=(3,), y=(3,))
case("stack", "[x, y]", x=(2, 3), y=(2, 3))
case("stack", "[x, y], axis=-1", x=(2, 3), y=(2, 3))
case("stack", "[x, y], axis=1", x=(2, 3), y=(2, 3))
case("expand_dims", "x, 1", x=(2, 3))
case("expand_dims", "x, -1", x=(2, 3))
case("flatten", x=(2, 3))
case("flatten", x=())
case("flip", "x, 1", x=(2, 3))
case("flip", "x, -1", x=(2, 3, 2))
case("fliplr", x=(2, 3))
case("flipud", x=(2, 3))
for index in (
    "1", "slice(None, None, -1)", "(Ellipsis, 1)", "(None, slice(0, 1))", "(0, slice(1, 3))",
    "[1, 0, 1]", "([0, 1, 0], [2, 0, 2])", "(slice(None), [2, 0])", "()", "(0, 1)",
    "np.array([True, False])", "(Ellipsis, None, -1)",
):  # fmt: skip
    case("get_item", f"x, {index}", x=(2, 3))
case("scatter_add", "x, 1, y", x=(2, 3), y=(3,))
case("scatter_add", "x, ([0, 1, 0], [2, 0, 2]), y", x=(2, 3), y=(3,))
case("scatter_add", "x, (slice(None), [2, 0]), y", x=(2, 3), y=(2, 2))
case("select_item", "x, t", x=(3, 4), t=[0, 3, 2])
WINDOWS = ("x, 2", "x, (3, 2), stride=2, pad=1", "x, 3, 2, 1, True", "x, 2, dilate=2",
           "x, 3, (2, 1), (0, 1), cover_all=True, dilate=(1, 2)")  # fmt: skip
for window in WINDOWS:
    case("im2col", window, x=(2, 3, 6, 5))
case("moveaxis", "x, 0, -1", x=(2, 3, 4))
case("moveaxis", "x, (0, 2), (1, 0)", x=(2, 3, 4))
case("rollaxis", "x, 2", x=(2, 3, 4))
case("rollaxis", "x, -1, 1", x=(2, 3, 4))
case("rollaxis", "x, 0, 3", x=(2, 3, 4))
case("swapaxes", "x, 0, -1", x=(2, 3, 4))
case("transpose", x=(2, 3, 4))
case("transpose", "x, (1, -1, 0)", x=(2, 3, 4))
case("pad", "x, 1, 'constant'", x=(2, 3))
case("pad", "x, ((1, 2), (0, 1)), 'constant', constant_values=2.5", x=(2, 3))
case("pad", "x, (1, 2), 'constant', constant_values=(1, 2)", x=(2, 3))
for mode in ("edge", "reflect", "symmetric", "wrap", "mean", "maximum", "minimum", "linear_ramp"):
    case("pad", f"x, ((1, 1), (2, 0)), '{mode}'", x=(3, 4), wrong="gradient",
         note="the gradient is cropped, whatever the mode")  # fmt: skip
case("pad_sequence", "[x, y, z]", x=(3, 2), y=(1, 2), z=(2, 2))
case("pad_sequence", "[x, y], length=5, padding=-1", x=(3,), y=(2,))
case("permutate", "x, t", x=(3, 2), t=[2, 0, 1])
case("permutate", "x, t, axis=1, inv=True", x=(2, 3), t=[2, 0, 1])
case("repeat", "x, 2", x=(2, 3))
case("repeat", "x, 2, axis=1", x=(2, 3))
case("repeat", "x, (1, 0, 2), axis=-1", x=(2, 3))
case("reshape", "x, (3, -1)", x=(2, 3))
case("reshape", "x, ()", x=(1,))
for mode in ("bilinear", "nearest"):
    for shape in ("(5, 7)", "(2, 3)", "(1, 1)", "(3, 4)"):
        case("resize_images", f"x, {shape}, mode='{mode}'", x=(1, 2, 3, 4))
        case("resize_images", f"x, {shape}, mode='{mode}', align_corners=False", x=(1, 2, 3, 4))
case("separate", x=(2, 3))
case("separate", "x, axis=-1", x=(2, 3))
case("spatial_transformer_grid", "x, (3, 4)", x=(2, 2, 3))
case("spatial_transformer_sampler", "x, g", x=(2, 3, 4, 5), g=uniform(-0.9, 0.9, 2, 2, 3, 4))
case("spatial_transformer_sampler", "x, g", x=(1, 2, 4, 5), g=uniform(-1.5, 1.5, 1, 2, 6, 5))
case("split_axis", "x, 3, 1", x=(2, 6))
case("split_axis", "x, [1, 3], 0", x=(4, 2))
case("split_axis", "x, (0, 2, 2), -1", x=(2, 4))
case("split_axis", "x, 1, 0, force_tuple=False", x=(4, 2))
case("squeeze", x=(1, 3, 1))
case("squeeze", "x, axis=(0, -1)", x=(1, 3, 1))
case("tile", "x, 2", x=(2, 3))
case("tile", "x, (2, 1, 3)", x=(2, 3))
case("tile", "x, (0, 2)", x=(2, 3))
case("transpose_sequence", "[x, y, z]", x=(3, 2), y=(2, 2), z=(1, 2))
case("transpose_sequence", "[x, y]", x=(2,), y=(1,))
case("where", "c, x, y", c=[[True, False, True], [False, True, False]], x=(2, 3), y=(2, 3))
case("where", "c, x, y", c=[[True], [False]], x=(2, 3), y=(3,))
case("where", "c, x, y", c=[True, False, True], x=(3,), y=(3,), mixed="x")

# Connections
case("linear", "x, W, b", x=(4, 3), W=(2, 3), b=(2,), mixed="x")
case("linear", "x, W", x=(4, 3, 2), W=(2, 6))
case("linear", "x, W, b, n_batch_axes=2", x=(2, 4, 3), W=(2, 3), b=(2,))
case("linear", "x, W, b", x=(0, 3), W=(2, 3), b=(2,))
case("bilinear", "x, y, W", x=(4, 2), y=(4, 3), W=(2, 3, 5))
case("bilinear", "x, y, W, V1, V2, b", x=(4, 2), y=(4, 3), W=(2, 3, 5), V1=(2, 5), V2=(3, 5), b=(5,))
case("embed_id", "x, W", x=[0, 2, 2, 1], W=(4, 3))
case("embed_id", "x, W, ignore_label=-1", x=[[0, -1], [2, 3]], W=(4, 3))
case("embed_id", "x, W, ignore_label=2", x=[[0, 1], [2, 3]], W=(4, 3))
case("shift", x=(2, 9, 4, 5))
case("shift", "x, ksize=3, dilate=2", x=(2, 10, 6, 5))
case("shift", "x, ksize=5", x=(1, 26, 6, 5))
CONVOLUTION = ("", ", stride=2, pad=1", ", cover_all=True, stride=2", ", dilate=2, pad=2")
for n in (1, 2, 3):
    sizes, kernel = (7, 6, 5)[:n], (3, 2, 3)[:n]
    for name in (f"convolution_{n}d", "convolution_nd"):
        for options in CONVOLUTION:
            case(name, f"x, W, b{options}", x=(2, 3, *sizes), W=(2, 3, *kernel), b=(2,), loose=4)
        case(name, "x, W, groups=2", x=(2, 4, *sizes), W=(4, 2, *kernel), loose=4)
    sizes = (4, 3, 3)[:n]
    for name in (f"deconvolution_{n}d", "deconvolution_nd"):
        for options in ("", ", stride=2, pad=1", ", dilate=2", ", dilate=2, stride=2, pad=1"):
            case(name, f"x, W, b{options}", x=(2, 3, *sizes), W=(3, 2, *kernel), b=(2,), loose=4)
        case(name, "x, W, groups=2", x=(2, 4, *sizes), W=(4, 2, *kernel), loose=4)
        outsize = tuple(2 * (i - 1) + k + 1 for i, k in zip(sizes, kernel))
        arguments = f"x, W, stride=2, outsize={outsize}"
        case(name, arguments, x=(2, 3, *sizes), W=(3, 2, *kernel), loose=4)
case("convolution_2d", "x, W, b, (2, 1), (1, 2), dilate=(1, 2), groups=3", x=(1, 6, 7, 6),
     W=(3, 2, 3, 2), b=(3,), mixed="x", loose=4)  # fmt: skip
case("convolution_2d", "x, W, stride=2, cover_all=True, dilate=2", x=(1, 2, 8, 8), W=(2, 2, 2, 3), loose=4)
case("convolution_nd", "x, W, stride=2, cover_all=True, dilate=2", x=(1, 2, 8, 8), W=(2, 2, 2, 3), loose=4)
case("deconvolution_2d", "x, W, b, (2, 1), (1, 0), dilate=(2, 1), groups=2", x=(1, 4, 4, 3),
     W=(4, 3, 3, 2), b=(6,), mixed="x", loose=4)  # fmt: skip
case("dilated_convolution_2d", "x, W, b, 2, 1, 2", x=(2, 3, 7, 6), W=(2, 3, 3, 2), b=(2,), loose=4)
case("dilated_convolution_2d", "x, W, dilate=2, cover_all=True, stride=2", x=(1, 2, 8, 8), W=(2, 2, 2, 3), loose=4)
case("depthwise_convolution_2d", "x, W, b", x=(2, 3, 5, 4), W=(2, 3, 3, 2), b=(6,), loose=4)
case("depthwise_convolution_2d", "x, W, stride=2, pad=1", x=(2, 3, 5, 4), W=(2, 3, 3, 2), loose=4)
case("local_convolution_2d", "x, W, b", x=(2, 3, 5, 4), W=(2, 3, 3, 3, 3, 2), b=(2, 3, 3), loose=4)
case("local_convolution_2d", "x, W, stride=2", x=(2, 3, 5, 4), W=(2, 2, 2, 3, 3, 2), loose=4)
DEFORMABLE = "deformable_convolution_2d_sampler"
case(DEFORMABLE, "x, offset, W, b", x=(2, 3, 5, 4), offset=uniform(-1, 1, 2, 12, 3, 3),
     W=(2, 3, 3, 2), b=(2,), loose=8)  # fmt: skip
case(DEFORMABLE, "x, offset, W, stride=2, pad=1", x=(2, 3, 5, 5), offset=uniform(-0.9, 0.9, 2, 18, 3, 3),
     W=(2, 3, 3, 3), loose=8)  # fmt: skip
case(DEFORMABLE, "x, offset, W, pad=1", x=(1, 2, 4, 4), offset=uniform(-2.5, 2.5, 1, 18, 4, 4),
     W=(2, 2, 3, 3), loose=8)  # fmt: skip


def recurrent(name, layers, weights, hidden_states, *, lengths=(3, 3, 2, 1), options="", n_in=3):
    """A case of an n_step function; weights are drawn layer by layer, direction by direction."""
    directions = 2 if "_bi" in name else 1
    units, arrays, ws, bs = 2, {}, [], []
    for i in range(layers * directions):
        layer_in = n_in if i < directions else units * directions
        for j in range(weights):
            arrays[f"w{i}_{j}"] = (units, layer_in if j < weights // 2 else units)
            arrays[f"b{i}_{j}"] = (units,)
        ws.append(f"[{', '.join(f'w{i}_{j}' for j in range(weights))}]")
        bs.append(f"[{', '.join(f'b{i}_{j}' for j in range(weights))}]")
    for state in hidden_states:
        arrays[state] = (layers * directions, lengths[0], units)
    arrays |= {f"x{i}": (n, n_in) for i, n in enumerate(lengths)}
    xs = ", ".join(f"x{i}" for i in range(len(lengths)))
    states = ", ".join(hidden_states)
    arguments = f"{layers}, 0.0, {states}, [{', '.join(ws)}], [{', '.join(bs)}], [{xs}]{options}"
    case(name, arguments, **arrays, loose=16)


for bi in ("", "bi"):
    for layers in (1, 2):
        recurrent(f"n_step_{bi}lstm", layers, 8, ["hx", "cx"])
        recurrent(f"n_step_{bi}gru", layers, 6, ["hx"])
        recurrent(f"n_step_{bi}rnn", layers, 2, ["hx"])
        recurrent(f"n_step_{bi}rnn", layers, 2, ["hx"], options=", activation='relu'")

# Evaluation
T = [0, 2, 1, -1, 2]
case("accuracy", "y, t", y=(4, 3), t=[0, 2, 1, 2], forward_only=True)
case("accuracy", "y, t, ignore_label=-1", y=(5, 3), t=T, forward_only=True)
case("accuracy", "y, t, ignore_label=0", y=(5, 3, 2), t=integers(3, 5, 2), forward_only=True)
case("accuracy", "y, t, ignore_label=-1", y=(2, 3), t=[-1, -1], forward_only=True)
case("binary_accuracy", "y, t", y=(5,), t=[0, 1, 1, -1, 0], forward_only=True)
case("binary_accuracy", "y, t", y=values(0.0, -1.0, 1.0), t=[0, 1, 1], forward_only=True)
for name in ("classification_summary", "f1_score", "precision", "recall"):
    case(name, "y, t", y=(5, 3), t=T, forward_only=True)
    case(name, "y, t, label_num=4", y=(5, 3), t=T, forward_only=True)
    case(name, "y, t, ignore_label=2", y=(5, 3), t=[0, 2, 1, 1, 2], forward_only=True)
    case(name, "y, t", y=(3, 3), t=[0, 0, 0], forward_only=True)
case("classification_summary", "y, t, beta=2.0", y=(8, 3), t=integers(3, 8), forward_only=True)
case("r2_score", "x, t", x=(5,), t=fixed((5,)), forward_only=True)
case("r2_score", "x, t", x=(5, 2), t=fixed((5, 2)), forward_only=True)
case("r2_score", "x, t, multioutput='raw_values'", x=(5, 2), t=fixed((5, 2)), forward_only=True)
case("r2_score", "x, t", x=fixed((3, 2)), t=fixed(Draw(lambda random: np.ones((3, 2)))),
     forward_only=True)  # fmt: skip

# Losses
SAMPLER = "lambda shape: (np.arange(np.prod(shape)).reshape(shape) * 2 % 5).astype(np.int32)"
REDUCE = (", reduce='sum'", ", reduce='mean'", ", reduce='no'")
BITS = fixed(Draw(lambda random: random.randint(0, 2, (3, 4)).astype(np.float64)))
for reduce in REDUCE:
    case("bernoulli_nll", f"x, y{reduce}", x=BITS, y=(3, 4))
    case("bernoulli_nll", f"x, y{reduce}", x=uniform(0, 1, 3, 4), y=(3, 4))
    case("gaussian_kl_divergence", f"m, v{reduce}", m=(3, 4), v=(3, 4))
    case("gaussian_nll", f"x, m, v{reduce}", x=(3, 4), m=(3, 4), v=(3, 4))
    case("negative_sampling", f"x, t, W, {SAMPLER}, 2{reduce}".replace("mean", "sum"), x=(3, 4),
         t=[0, -1, 2], W=(5, 4))  # fmt: skip
for reduce in REDUCE[1:]:
    case("black_out", f"x, t, W, s{reduce}", x=(3, 4), t=[0, 1, 2], W=(6, 4),
         s=[[3, 4], [5, 0], [1, 4]], loose=16)  # fmt: skip
    for extra in ("", ", margin=2.5"):
        case("contrastive", f"x, y, t{extra}{reduce}", x=(4, 3), y=(4, 3), t=[0, 1, 0, 1])
        case("triplet", f"x, y, z{extra}{reduce}", x=(4, 3), y=(4, 3), z=(4, 3))
    for norm in ("L1", "L2"):
        case("hinge", f"x, t, norm='{norm}'{reduce}", x=(4, 3), t=[0, 2, 1, 2])
    for normalize in (True, False):
        arguments = f"x, t, normalize={normalize}{reduce}"
        case("sigmoid_cross_entropy", arguments, x=(3, 4), t=integers(2, 3, 4, low=-1))
        case("softmax_cross_entropy", arguments, x=(5, 3), t=T)
        case("softmax_cross_entropy", arguments, x=(5, 3, 2), t=integers(3, 5, 2, low=-1))
    case("softmax_cross_entropy", f"x, t, class_weight=w, ignore_label=0{reduce}", x=(5, 3), t=T[:3] + [1, 0],
         w=fixed(uniform(0.5, 2, 3)))  # fmt: skip
    case("softmax_cross_entropy", f"x, t, class_weight=w{reduce}", x=(5, 3), t=T,
         w=fixed(uniform(0.5, 2, 3)))  # fmt: skip
    case("softmax_cross_entropy", f"x, t, enable_double_backprop=True{reduce}", x=(5, 3), t=T)
    case("softmax_cross_entropy", f"x, t, class_weight=w, enable_double_backprop=True{reduce}",
         x=(5, 3), t=T, w=fixed(uniform(0.5, 2, 3)))  # fmt: skip
    case("softmax_cross_entropy", f"x, t, cache_score=False{reduce}", x=(5, 3), t=T)
    for soft, wrong, note in (
        ("cross-entropy", "", ""),
        ("kl-divergence", "forward float64", "it takes the logarithm of t + 1e-7"),
    ):
        case("softmax_cross_entropy", f"x, F.softmax(t){reduce}, soft_target_loss='{soft}'", x=(4, 3),
             t=(4, 3), wrong=wrong, note=note)  # fmt: skip
        case("softmax_cross_entropy", f"x, F.softmax(t).array{reduce}, soft_target_loss='{soft}'",
             x=(4, 3), t=fixed((4, 3)), wrong=wrong, note=note)  # fmt: skip
case("softmax_cross_entropy", "x, t", x=(2, 3), t=[-1, -1])
case("softmax_cross_entropy", "x, t", x=uniform(-300, 300, 3, 4), t=[0, 1, 2])
case("sigmoid_cross_entropy", "x, t", x=(3,), t=[-1, -1, -1])
case("sigmoid_cross_entropy", "x, t", x=values(-300.0, 300.0, 0.0), t=[0, 0, 1])
for reduce in ("half_squared_sum", "no"):
    case("cross_covariance", f"y, z, reduce='{reduce}'", y=(5, 3), z=(5, 2))
    case("decov", f"x, reduce='{reduce}'", x=(5, 3))
for reduce in ("sum_along_second_axis", "no"):
    case("huber_loss", f"x, t, 1.0, reduce='{reduce}'", x=(4, 3), t=(4, 3))
    case("huber_loss", f"x, t, 0.3, reduce='{reduce}'", x=(4, 3, 2), t=(4, 3, 2))
case("huber_loss", "x, t, 1.0, reduce='no'", x=values(0.0, 1.0, -1.0, 2.0), t=values(0.0, 0.0, 0.0, 0.0))
case("negative_sampling", f"x, t, W, {SAMPLER}, 3, return_samples=True", x=(3, 4), t=[0, 1, 2],
     W=(5, 4))  # fmt: skip
CTC = {f"x{i}": (2, 4) for i in range(5)}
XS = "[x0, x1, x2, x3, x4]"
for reduce in REDUCE[1:]:
    case("connectionist_temporal_classification", f"{XS}, t, 0{reduce}", **CTC, t=[[1, 2], [3, 3]], loose=8)
    case("connectionist_temporal_classification", f"{XS}, t, 3, m, n{reduce}", **CTC,
         t=[[1, 2, 0], [0, 1, 2]], m=[5, 3], n=[3, 1], loose=8)  # fmt: skip
    case("crf1d", f"W, [x0, x1, x2], [a, b, c]{reduce}", W=(3, 3), x0=(3, 3), x1=(2, 3), x2=(1, 3),
         a=[0, 1, 2], b=[1, 1], c=[2])  # fmt: skip
    case("crf1d", f"W, [x0, x1], [a, b]{reduce}", W=(3, 3), x0=(2, 3), x1=(2, 3), a=[0, 1], b=[1, 2])
case("argmax_crf1d", "W, [x0, x1, x2]", W=(3, 3), x0=(3, 3), x1=(2, 3), x2=(1, 3), forward_only=True)
NOT_A_NUMBER = {"wrong": "gradient", "note": "the gradient of norm 2 is nan throughout"}
for norm in (1, 2):
    case("discriminative_margin_based_clustering_loss", f"x, t, 0.1, 1.5, 3, norm={norm}", x=(1, 3, 4, 4),
         t=integers(3, 1, 4, 4), loose=4, **(NOT_A_NUMBER if norm == 2 else {}))  # fmt: skip
case("discriminative_margin_based_clustering_loss", "x, t, 0.1, 1.5, 3", x=(2, 3, 4, 4),
     t=integers(3, 2, 4, 4), note="it fails unless there is one image, or one for each label")  # fmt: skip
case("discriminative_margin_based_clustering_loss", "x, t, 0.5, 3.0, 3, 2, 2.0, 0.5, 0.1", x=(1, 3, 4, 4),
     t=integers(4, 1, 4, 4), loose=4, **NOT_A_NUMBER)  # fmt: skip

# Noise
case("dropout", "x, mask=m", x=(3, 4), m=mask(0.5, 3, 4))
case("dropout", "x, 0.3, mask=m, return_mask=True", x=(3, 4), m=mask(0.3, 3, 4))
case("dropout", config=TEST, x=(3, 4))
case("dropout", "x, 0.0", x=(3, 4))
case("dropout", "x, 0.3", x=(3, 4))
case("gumbel_softmax", "x, 0.5", x=(3, 4))
case("gumbel_softmax", "x, tau=2.0, axis=2", x=(3, 4, 2))
case("gaussian", "m, v", m=(3, 4), v=(3, 4))
case("zoneout", "h, x, 0.3", h=(3, 4), x=(3, 4))
case("rrelu", x=(3, 4))
case("gaussian", "m, v, eps=e", m=(3, 4), v=(3, 4), e=fixed((3, 4)))
case("gaussian", "m, v, eps=e, return_eps=True", m=(3, 4), v=(3, 4), e=fixed((3, 4)))
DROPCONNECT = "simplified_dropconnect"
case(DROPCONNECT, "x, W, b, mask=m", x=(3, 4), W=(2, 4), b=(2,), m=fixed(mask(0.5, 3, 2, 4)))
case(DROPCONNECT, "x, W, ratio=0.3, mask=m, use_batchwise_mask=False", x=(3, 4), W=(2, 4),
     m=mask(0.3, 2, 4))  # fmt: skip
case(DROPCONNECT, "x, W, b, mask=m > 0, use_batchwise_mask=True", x=(3, 4), W=(2, 4), b=(2,),
     m=mask(0.5, 3, 2, 4))  # fmt: skip
case(DROPCONNECT, "x, W, b, train=False", x=(3, 4), W=(2, 4), b=(2,))
case("zoneout", "h, x, 0.3", config=TEST, h=(3, 4), x=(3, 4))
case("zoneout", "h, x, 0.0", h=(3, 4), x=(3, 4))

# Normalization
BN = {"x": (4, 3, 2, 2), "g": uniform(0.5, 2, 3), "b": (3,)}
STATS = {"m": fixed((3,)), "v": fixed(uniform(0.5, 2, 3))}
case("batch_normalization", "x, g, b", **BN, mixed="x", loose=8)
case("batch_normalization", "x, g, b, running_mean=m, running_var=v", **BN, **STATS, loose=8)
case("batch_normalization", "x, g, b, eps=0.1, running_mean=m, running_var=v, decay=0.3", **BN, **STATS, loose=8)
case("batch_normalization", "x, g, b, axis=(0, 2)", x=(4, 3, 2), g=(3,), b=(3,), loose=8)
case("batch_normalization", "x, g, b, axis=0", x=(4, 3, 2), g=(3, 2), b=(3, 2), loose=8)
case("batch_normalization", "x, g, b, axis=(0, 1)", x=(4, 3, 2), g=(2,), b=(2,), loose=8)
case("batch_normalization", "x, g, b", x=(4, 3, 2), g=(3, 2), b=(3, 2), loose=8)
case("batch_normalization", "x, g, b", x=(5, 3), g=(3,), b=(3,), loose=8)
case("fixed_batch_normalization", "x, g, b, m, v", **BN, m=(3,), v=uniform(0.5, 2, 3), mixed="x", loose=4)
case("fixed_batch_normalization", "x, g, b, m, v, eps=0.1, axis=(0, 1)", x=(4, 3, 2), g=(2,), b=(2,), m=(2,),
     v=uniform(0.5, 2, 2), loose=4)  # fmt: skip
case("fixed_batch_renormalization", "x, g, b, m, v", **BN, m=(3,), v=uniform(0.5, 2, 3), loose=4)
for limits in ("3.0, 5.0", "1.1, 0.1", "1.0, 0.0"):
    case("batch_renormalization", f"x, g, b, {limits}, running_mean=m, running_var=v", **BN, **STATS, loose=8)
    case("batch_renormalization", f"x, g, b, {limits}, 1e-3, m, v, 0.3, update_statistics=True", **BN, **STATS,
         loose=8)  # fmt: skip
DECORRELATED = "decorrelated_batch_normalization"
PROJECTION = {"m": fixed((2, 3)), "p": fixed((2, 3, 3))}
case(DECORRELATED, "x, groups=1", x=(16, 4), loose=30)
case(DECORRELATED, "x, groups=2, eps=0.1", x=(5, 6, 3, 2), loose=30)
case(DECORRELATED, "x, groups=2, running_mean=m, running_projection=p, decay=0.3", x=(16, 6, 2), **PROJECTION,
     loose=30)  # fmt: skip
case("fixed_decorrelated_batch_normalization", "x, m, p, groups=2", x=(5, 6, 2), **PROJECTION, loose=4)
case("fixed_decorrelated_batch_normalization", "x, m, p, groups=2", x=(5, 6, 2), m=(2, 3), p=(2, 3, 3),
     note="it raises where the gradients of mean and projection are wanted")  # fmt: skip
case("group_normalization", "x, 2, g, b", x=(3, 4, 2, 2), g=(4,), b=(4,), loose=8)
case("group_normalization", "x, 4, g, b, eps=0.1", x=(3, 4, 5), g=(4,), b=(4,), loose=8)
case("group_normalization", "x, 1, g, b", x=(3, 4), g=(4,), b=(4,), loose=8)
case("layer_normalization", "x, g, b", x=(3, 5), g=(5,), b=(5,), loose=8)
case("layer_normalization", "x, g, b, eps=0.1", x=(3, 5), g=(5,), b=(5,), loose=8)
case("local_response_normalization", x=(2, 7, 3, 2))
case("local_response_normalization", "x, n=3, k=1, alpha=0.5, beta=0.6", x=(2, 7, 3, 2), loose=4)
case("normalize", x=(3, 4))
case("normalize", "x, eps=0.1, axis=2", x=(2, 3, 4))
case("normalize", "x, axis=(1, 2)", x=(2, 3, 4))
case("normalize", "x, axis=0", x=(2, 3))

# Pooling
SIZES = (6, 5, 4)
for n in (1, 2, 3):
    for suffix in (f"{n}d", "nd"):
        ksize = ", 3" if suffix[0] == str(n) else f", {(3, 2, 3)[:n]}"
        for rest in ("", ", stride=2, pad=1", ", stride=1"):
            case(f"average_pooling_{suffix}", f"x{ksize}{rest}", x=(2, 2, *SIZES[:n]))
            for cover in ("", ", cover_all=False"):
                case(f"max_pooling_{suffix}", f"x{ksize}{rest}{cover}", x=(2, 2, *SIZES[:n]))
        if suffix != "2d":
            arguments = f"x{ksize}, stride=2, pad=1, pad_value=None"
            case(f"average_pooling_{suffix}", arguments, x=(2, 2, *SIZES[:n]))
        arguments = f"x{ksize}, stride=2, return_indices=True"
        case(f"max_pooling_{suffix}", arguments, x=(2, 2, *SIZES[:n]))
        for rest in ("", ", stride=2, pad=1", ", cover_all=False", ", stride=1, cover_all=False"):
            case(f"unpooling_{suffix}", f"x{ksize}{rest}", x=(2, 2, *(3, 2, 2)[:n]))
        outsize = tuple(2 * i for i in (3, 2, 2)[:n])
        case(f"unpooling_{suffix}", f"x, 2, outsize={outsize}", x=(2, 2, *(3, 2, 2)[:n]))
case("max_pooling_2d", "x, 2, pad=1", x=uniform(-9, -1, 1, 1, 4, 4))
case("max_pooling_2d", "F.floor(x) + x * 0, 2, return_indices=True", x=uniform(0, 2, 1, 2, 4, 4))
case("upsampling_2d", "x, t, 2", x=(1, 2, 2, 3), t=integers(4, 1, 2, 2, 3))
case("upsampling_2d", "x, t, 3, stride=2, pad=1, cover_all=False", x=(1, 2, 2, 3), t=integers(4, 1, 2, 2, 3, low=3))
case("upsampling_2d", "x, t, 2, outsize=(4, 6)", x=(1, 2, 2, 3), t=integers(4, 1, 2, 2, 3))
case("upsampling_2d", "x, t, 2, outsize=(3, 5)", x=(1, 2, 2, 3), t=integers(1, 1, 2, 2, 3))
case("spatial_pyramid_pooling_2d", "x, 2, pooling='max'", x=(2, 3, 5, 6))
case("spatial_pyramid_pooling_2d", "x, 3, pooling='max'", x=(2, 2, 9, 8))
ROIS = fixed(values(0, 0, 6, 8, 2, 1, 5, 4, -1, 3, 3, 12, 1, 1, 1, 1))
FIVE = fixed(values(0, 0, 0, 6, 8, 1, 2, 1, 5, 4, 0, 1, 3, 3, 9))
WHERE = {"x": (2, 3, 8, 10), "r": ROIS, "t": [0, 1, 0, 1]}
EMPTY = {"wrong": "infinite", "note": "the maximum over no pixel is -inf"}
for scale in ("1.0", "0.6"):
    case("roi_pooling_2d", f"x, r.reshape(3, 5), 3, 2, {scale}", x=(2, 3, 8, 10), r=FIVE)
    for name in ("roi_max_pooling_2d", "roi_average_pooling_2d"):
        case(name, f"x, r.reshape(4, 4), t, 3, {scale}", **WHERE, loose=4, **EMPTY)
        case(name, f"x, r.reshape(4, 4), t, (2, 4), {scale}", **WHERE, loose=4, **EMPTY)
    for name in ("roi_max_align_2d", "roi_average_align_2d"):
        for rest in (f"3, {scale}", f"(2, 4), {scale}, 2", f"(2, 4), {scale}, sampling_ratio=(1, 3)"):
            case(name, f"x, r.reshape(4, 4), t, {rest}", **WHERE, loose=8, **EMPTY)

case("forget", "lambda x: F.sin(x) * x, x", x=(2, 3))
case("forget", "lambda x, y: (F.matmul(x, y), F.tanh(x)), x, y", x=(2, 3), y=(3, 2))
