"""Arithmetic, activation functions, reductions, products."""

from tests.oracle.function_cases.case import (
    ALL,
    TEST,
    case,
    fixed,
    positive_definite,
    regular,
    uniform,
    values,
)

# fmt: off
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

KINKS = values(-3.0, -2.5, -1.0, 0.0, 1.0, 2.5, 3.0, 6.0, 20.0, 25.0)

# Activation
for name in ("relu", "sigmoid", "hard_sigmoid", "relu6", "clipped_relu", "elu", "selu", "softplus",
             "leaky_relu"):
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
case("swish", "x, beta", x=(2, 3, 4), beta=(3, 4), loose=4)
case("swish", "x, beta", x=(2, 3), beta=(), loose=4)
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
case("mean", x=uniform(30000, 60000, 4), dtypes=("float16", "float64"))
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
case("einsum", "'...ij,...jk->...ik', x, y", x=(5, 2, 3), y=(3, 4), wrong="refuses",
     note="no ellipsis is broadcast")
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
     col=[[0, 0, 2], [1, 0, 2]], y=(2, 3, 4))
case("fft", "(x, y)", x=(2, 8), y=(2, 8), dtypes=ALL[1:])
case("fft", "(x, y)", x=(3,), y=(3,), dtypes=ALL[1:])
case("ifft", "(x, y)", x=(2, 8), y=(2, 8), dtypes=ALL[1:])

# Operators
for text in ("x + y", "x - y", "x * y", "x / y", "abs(x)", "-x", "x // y"):
    case("identity", text, x=(3, 4), y=uniform(0.5, 2, 3, 4))
    case("identity", text, x=(3, 4), y=uniform(0.5, 2, 4))
for text in ("x + 2", "2 - x", "x * 1.5", "1 / x", "x ** 3", "2 ** x", "x ** -0.5", "x / 3",
    "x ** 0"):
    case("identity", text, x=uniform(0.5, 2, 3, 4))
case("identity", "x ** y", x=uniform(0.5, 2, 3, 4), y=(3, 4))
case("identity", "x ** 2", x=values(-1.0, 0.0, 2.0))
case("identity", "x @ y", x=(2, 3), y=(3, 4))
case("identity", "x.T, x[1], x.reshape(3, 2), x.transpose(1, 0)", x=(2, 3))
