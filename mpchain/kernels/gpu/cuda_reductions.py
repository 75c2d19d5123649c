"""Normalizations and softmax on GPUs, by kernels that compute a few sums and then the results from
the sums.

A group of threads (lanes) computes the sums of one row or channel: each lane sums some of the
elements, and the lanes' sums are then added pairwise in shared memory. If there are few but long
sums, the sums are computed in parts, to keep the whole GPU busy, and a second kernel joins the
parts. The order of additions is always the same. Half precision is computed in single precision.
"""

import functools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.kernels import reference
from mpchain.kernels.gpu.cuda_channels import NORMALIZE, NORMALIZE_GRADIENT, in_order
from mpchain.kernels.operation import HALF_TO_DOUBLE
from mpchain.typing import Array

_THREADS, _USUAL, _BLOCKS = 1024, 256, 1 << 20
"""The maximum number of threads of a block for sums whose elements are not contiguous, the maximum
for other sums, and the maximum number of blocks of a grid."""
_TEXTS = "name fields zero first add last merge finish".split()
_AHEAD = 4
"""The number of elements that a thread loads before it uses the first element."""
_FILLING = 1 << 19
"""The number of threads that fills a GPU; with so many threads, sums are not divided into parts."""
_FEW = 32
"""The number of elements that a thread adds, if there are enough threads."""
_C_TYPES = {"e": "float16", "f": "float", "d": "double"}
ALL_C_TYPES = _C_TYPES | {"i": "int", "l": "long long", "q": "long long"}
_FIELDS = "n_sums n inner outer span far near groups per parts chunk".split()
_SHAPE = np.dtype([*((name, np.int64) for name in _FIELDS), ("lanes", "i4"), ("across", "i4")])

# Element j of sum r is at start(r) + (j / span) * far + (j % span) * near. Neighboring threads read
# neighboring elements in memory, which are elements of one sum or of neighboring sums. A part of a
# sum has the elements from part * chunk on. A thread begins to load several elements before it uses
# the first element.
_TEXT = """{header}
typedef {wide} W;
struct Sums {{ W {fields}; }};
struct Shape {{ long long {shape}; int lanes, across; }};
#define NEXT row += row_step; place += place_step; next += step; \\
  if (place >= shape.span) {{ place -= shape.span; row++; next += to_row; }}
#define EACH(DECLARE, LOAD, TAKE, ...) {{ \\
  long long row = (begin + lane) / shape.span, place = (begin + lane) % shape.span; \\
  long long next = start + row * shape.far + place * shape.near; \\
  long long j = begin + lane; \\
  for (; j + {ahead_less_one} * shape.lanes < end; j += {ahead} * shape.lanes) {{ \\
    long long places[{ahead}]; DECLARE \\
    _Pragma("unroll") for (int u = 0; u < {ahead}; u++) {{ \\
      const long long at = next; \\
      places[u] = at; LOAD NEXT \\
    }} \\
    _Pragma("unroll") for (int u = 0; u < {ahead}; u++) {{ \\
      const long long at = places[u]; (void)at; TAKE __VA_ARGS__ \\
    }} \\
  }} \\
  for (; j < end; j += shape.lanes) {{ \\
    const int u = 0; DECLARE \\
    const long long at = next; \\
    LOAD TAKE __VA_ARGS__ NEXT \\
  }} \\
}}
extern "C" __launch_bounds__({threads}, {blocks}) __global__ void mpchain_{name}(
    const Shape shape, {parameters}) {{
  __shared__ Sums shared[{threads}];
  const int n_groups = blockDim.x / shape.lanes;
  const int lane = shape.across ? threadIdx.x / n_groups : threadIdx.x % shape.lanes;
  const int group = shape.across ? threadIdx.x % n_groups : threadIdx.x / shape.lanes;
  const long long row_step = shape.lanes / shape.span, place_step = shape.lanes % shape.span;
  const long long step = row_step * shape.far + place_step * shape.near;
  const long long to_row = shape.far - shape.span * shape.near;
  Sums* mine = shared + (lane * n_groups + group);
  const long long n_all = shape.n_sums * shape.parts;
  for (long long first = (long long)blockIdx.x * n_groups; first < n_all;
       first += (long long)gridDim.x * n_groups) {{
    const long long whole = first + group, r = whole % shape.n_sums;
    const long long start = r / shape.inner * shape.outer + r % shape.inner;
    const long long begin = whole / shape.n_sums * shape.chunk;
    const long long end = begin + shape.chunk < shape.n ? begin + shape.chunk : shape.n;
    Sums a = {{ {zero} }};
    if (whole < n_all) {{ {first} {add} {last} }}
    *mine = a;
    for (int half = shape.lanes / 2; half; half /= 2) {{
      __syncthreads();
      if (lane < half) {{
        const Sums b = mine[half * n_groups];
        {merge}
        *mine = a;
      }}
    }}
    __syncthreads();
    a = shared[group];
    if (whole < n_all) {{
      {finish}
    }}
    __syncthreads();
  }}
}}
"""


class SumKernel(NamedTuple):
    """A kernel that computes sums, as the parts of its text.

    Attributes:
        name: the name of the kernel.
        parameters: names of arrays that are read, of arrays that are written, and of scalars:
            floating point, or integers (``long:NAME``).
        fields, zero: the names of the sums, and their values for no elements.
        add: C code that adds the element at ``at`` to the sums ``a``. The code reads each array at
            one position.
        merge: C code that adds the sums ``b`` to the sums ``a``.
        finish: C code that uses the sums ``a`` of row or channel ``r``. At its end, ``EACH``
            repeats a statement like ``add`` for all elements of the row or channel.
        first, last: C code that runs before and after the loop over the elements of a thread, whose
            first element is ``begin + lane``.
        has_parts: whether long sums may be computed in parts, because ``finish`` uses no elements.
    """

    name: str
    parameters: tuple[str, str, str]
    fields: str
    zero: str
    add: str
    merge: str
    finish: str
    first: str = ""
    last: str = ""
    has_parts: bool = False

    def text(self, dtypes: Sequence[str], wide: str, threads: int = _THREADS) -> str:
        """Returns the kernel's text for arrays of the given dtypes, in the order of the parameters,
        for sums of the dtype ``wide``, and for blocks of at most ``threads`` threads."""
        reads, writes, numbers = (names.split() for names in self.parameters)
        types = [ALL_C_TYPES[dtype] for dtype in dtypes]
        words = [f"const {kind}* {name}" for kind, name in zip(types, reads)]
        words += [f"{kind}* {name}" for kind, name in zip(types[len(reads) :], writes, strict=True)]
        kinds = dict(zip(reads, types))
        finish, _, repeated = self.finish.partition("EACH(")
        finish += repeated and _each(repeated.rpartition(")")[0], kinds)
        words += [f"const W {x}".replace("W long:", "long long ") for x in numbers]
        return _TEXT.format(
            header="#include <cupy/float16.cuh>" if "e" in dtypes else "",
            wide=_C_TYPES[wide],
            shape=", ".join(_FIELDS),
            threads=threads,
            blocks=_THREADS // threads,
            parameters=", ".join(words),
            ahead=_AHEAD,
            ahead_less_one=_AHEAD - 1,
            **{field: getattr(self, field) for field in _TEXTS}
            | {"add": _each(self.add, kinds), "finish": finish},
        )

    def run(
        self, shape: dict, ins: Sequence[Array], outs: Sequence[tuple], numbers: Sequence = ()
    ) -> list[Array]:
        """Runs the kernel; returns new arrays of the shapes and dtypes in ``outs``."""
        xp, wide = cuda.get_array_module(ins[0]), wide_dtype(ins[0])
        if (parts := _parts(**shape) if self.has_parts else 1) > 1:
            kept = [((parts, shape["n_sums"]), wide)] * (self.fields.count(",") + 1)
            partial, join = _stages(self)
            sums = partial.run({**shape, "parts": parts}, ins, kept, numbers)
            return join.run(_channels(parts, shape["n_sums"], 1), sums, outs, numbers)
        arrays = [xp.ascontiguousarray(x) for x in ins]
        written = [xp.empty(size, dtype) for size, dtype in outs]
        dtypes = "".join(x.dtype.char for x in [*arrays, *written])
        table, grid, block = _sized(**shape)
        kernel = _compiled(self, dtypes, wide.char, _THREADS if shape["across"] else _USUAL)
        scalars = [np.int64(x) if isinstance(x, int) else wide.type(x) for x in numbers]
        kernel(grid, block, (table, *arrays, *written, *scalars))
        return written


def _each(statement, kinds):
    """Returns C code that repeats a statement for the elements of a thread. ``kinds`` maps the
    names of the arrays that the statement reads to their C types."""
    pattern = rf"\b({'|'.join(kinds)})\[([^\[\]]+)\]"
    places = dict(re.findall(pattern, statement))
    statement = re.sub(pattern, r"\1_at", statement)
    declare = " ".join(f"{kinds[name]} {name}_[{_AHEAD}];" for name in places)
    load = " ".join(f"{name}_[u] = {name}[{place}];" for name, place in places.items())
    take = " ".join(f"const {kinds[name]} {name}_at = {name}_[u];" for name in places)
    return f"EACH({declare}, {load}, {take}, {statement})"


@functools.cache
def _compiled(kernel, dtypes, wide, threads):
    return cuda.raw(kernel.text(dtypes, wide, threads), f"mpchain_{kernel.name}")


@functools.cache
def _stages(kernel):
    """Returns the kernel that computes parts of sums, and the kernel that joins the parts."""
    reads, writes, numbers = kernel.parameters
    names = [name.strip() for name in kernel.fields.split(",")]
    kept = " ".join(f"of_{name}" for name in names)
    written = "".join(f"of_{name}[whole] = a.{name}; " for name in names)
    loaded = ", ".join(f"of_{name}[at]" for name in names)
    return (
        kernel._replace(
            name=f"{kernel.name}_of_parts",
            parameters=(reads, kept, numbers),
            finish=f"if (lane == 0) {{ {written}}}",
            has_parts=False,
        ),
        kernel._replace(
            name=f"{kernel.name}_from_parts",
            parameters=(kept, writes, numbers),
            add=f"const Sums b = {{ {loaded} }}; {kernel.merge}",
            first="",
            last="",
            has_parts=False,
        ),
    )


def wide_dtype(x: Array) -> np.dtype:
    """Returns the dtype in which elements of an array are summed.

    Example:
        >>> wide_dtype(np.ones(1, np.float16))
        dtype('float32')
    """
    return np.promote_types(x.dtype, np.float32)


def _power_of_two(n):
    return 1 << max(n - 1, 0).bit_length()


def _lanes(n, across):
    most = 32 if n <= 1024 or across else _USUAL
    return min(most, _power_of_two(-(-n // 4) if across else n))


def _parts(n, n_sums, across, **_):
    """Returns the number of parts of each sum, which is one unless few threads would compute long
    sums."""
    lanes = _lanes(n, across)
    return max(1, min(-(-n // (lanes * _FEW)), _FILLING // (n_sums * lanes)))


@functools.lru_cache(maxsize=1024)
def _sized(across, parts=1, **sizes):
    """Returns the first argument of a kernel, the size of its grid and the size of its blocks."""
    n, n_sums = sizes["n"], sizes["n_sums"] * parts
    sizes |= {"parts": parts, "chunk": -(-n // parts)}
    lanes = _lanes(n, across)
    groups = min(_power_of_two(n_sums), 32 if across else max(256 // lanes, 1))
    table = np.zeros(1, _SHAPE)
    for name, value in {**sizes, "lanes": lanes, "across": across}.items():
        table[name] = value
    return table, (min(-(-n_sums // groups), _BLOCKS),), (lanes * groups,)


def _samples(n_rows, n, groups, per):
    """Describes sums over rows whose elements have parameters; each row has ``per`` channels."""
    parameters = {"groups": groups, "per": per, "span": n // per, "far": n // per}
    return row_sums(n_rows, n) | parameters


def row_sums(outer: int, n: int, inner: int = 1) -> dict:
    """Describes sums over the second of three axes, for :meth:`SumKernel.run`.

    Example:
        >>> row_sums(5, 3)["n_sums"]
        5
    """
    shape = {"n_sums": outer * inner, "n": n, "inner": inner, "outer": n * inner, "span": n}
    return shape | {"far": 0, "near": inner, "groups": 1, "per": 1, "across": inner > 1}


def _channels(outer, n, inner, groups=0, per=1):
    """Describes sums over the first and the last of three axes."""
    shape = {"n_sums": n, "n": outer * inner, "inner": 1, "outer": inner, "span": inner}
    shape |= {"far": n * inner, "near": 1, "groups": groups, "per": per}
    return shape | {"across": inner == 1}


def refusal(*arrays: Any) -> str | None:
    """Returns the reason why the kernels of this module refuse arrays; None if they accept the
    arrays.

    Example:
        >>> refusal(np.ones(2))
        'not CuPy arrays'
    """
    if not all(map(cuda.is_gpu_array, arrays)):
        return "not CuPy arrays"
    if any(x.dtype.char not in _C_TYPES for x in arrays):
        return "not arrays of half, single or double precision"
    return _refuse_empty(arrays[0])


def _refuse_empty(x):
    return None if x.size else "no elements"


# Each thread sums deviations from its first element, which takes no division. The threads' sums are
# joined by the formula of T. F. Chan et al., 1979.
_MOMENTS = {
    "fields": "count, mean, squares",
    "zero": "0, 0, 0",
    "first": """const long long j0 = begin + lane;
    const W shift = j0 < end
      ? (W)x[start + j0 / shape.span * shape.far + j0 % shape.span * shape.near] : (W)0;""",
    "add": """const W d = (W)x[at] - shift; a.mean += d; a.squares += d * d;""",
    "last": """if (j0 < end) {
      a.count = (W)((end - j0 + shape.lanes - 1) / shape.lanes);
      const W d = a.mean / a.count;
      a.squares -= a.mean * d;
      if (a.squares < 0) a.squares = 0;
      a.mean = shift + d;
    }""",
    "merge": """if (b.count > 0) {
          const W d = b.mean - a.mean, part = b.count / (a.count + b.count);
          a.mean += d * part; a.squares += b.squares + d * d * a.count * part;
          a.count += b.count;
        }""",
}
_STATISTICS = SumKernel(
    "statistics",
    ("x", "mean inverse_std var", "eps"),
    **_MOMENTS,
    finish="""if (lane == 0) {
        const W v = a.squares / a.count;
        mean[r] = a.mean; var[r] = v; inverse_std[r] = (W)1 / sqrt(v + eps);
      }""",
    has_parts=True,
)
_PARAMETER_GRADIENTS = SumKernel(
    "parameter_gradients",
    ("g x mean inverse_std", "g_gamma g_beta", ""),
    "gamma, beta",
    "0, 0",
    """const W v = g[at];
    const W centered = (W)x[at] - mean[row * shape.groups + own];
    a.beta += v; a.gamma += v * (centered * inverse_std[row * shape.groups + own]);""",
    "a.beta += b.beta; a.gamma += b.gamma;",
    "if (lane == 0) { g_gamma[r] = a.gamma; g_beta[r] = a.beta; }",
    "const long long own = r / shape.per;",
    has_parts=True,
)


_NORMALIZATION = SumKernel(
    "sample_normalization",
    ("x gamma beta", "y mean inverse_std", "eps"),
    **_MOMENTS,
    finish="""const W scale = (W)1 / sqrt(a.squares / a.count + eps);
      const long long k0 = r % shape.groups * shape.per;
      if (lane == 0) { mean[r] = a.mean; inverse_std[r] = scale; }
      EACH(y[at] = ((W)x[at] - a.mean) * scale * (W)gamma[k0 + row] + (W)beta[k0 + row];)""",
)
_NORMALIZATION_GRADIENT = SumKernel(
    "sample_normalization_gradient",
    ("g x gamma mean inverse_std", "gx", ""),
    "sum, product",
    "0, 0",
    """const W h = (W)g[at] * (W)gamma[k0 + row];
      a.sum += h; a.product += h * (((W)x[at] - center) * scale);""",
    "a.sum += b.sum; a.product += b.product;",
    """const W center = mean[r], scale = inverse_std[r], share = (W)1 / (W)shape.n;
      const long long k0 = r % shape.groups * shape.per;
      EACH(const W h = (W)g[at] * (W)gamma[k0 + row];
        const W normalized = ((W)x[at] - center) * scale;
        gx[at] = (h - (normalized * a.product + a.sum) * share) * scale;)""",
    """const W center = mean[r], scale = inverse_std[r];
      const long long k0 = r % shape.groups * shape.per;""",
)
# The sum of exponentials is relative to the largest element so far, which is -infinity (low) at
# first.
EXPONENTIALS = {
    "fields": "top, total",
    "zero": "low, 0",
    "add": """const W v = x[at];
    if (v > a.top) {
      a.total = (a.total == 0 ? (W)0 : a.total * exp(a.top - v)) + exp(v - v);
      a.top = v;
    } else if (v != low) a.total += exp(v - a.top);""",
    "merge": """const W top = a.top > b.top ? a.top : b.top;
        a.total = (a.total == 0 ? (W)0 : a.total * exp(a.top - top))
          + (b.total == 0 ? (W)0 : b.total * exp(b.top - top));
        a.top = top;""",
}
_SOFTMAX = SumKernel(
    "softmax",
    ("x", "y", "low scale"),
    **EXPONENTIALS | {"add": EXPONENTIALS["add"].replace("x[at]", "(W)x[at] * scale")},
    finish="""const W share = (W)1 / a.total;
      EACH(y[at] = exp((W)x[at] * scale - a.top) * share;)""",
)
_LOG_SOFTMAX = SumKernel(
    "log_softmax",
    ("x", "y", "low"),
    **EXPONENTIALS,
    finish="const W log_total = log(a.total); EACH(y[at] = (W)x[at] - a.top - log_total;)",
)
_SOFTMAX_GRADIENT = SumKernel(
    "softmax_gradient",
    ("g y", "gx", "scale"),
    "total",
    "0",
    "a.total += (W)g[at] * (W)y[at];",
    "a.total += b.total;",
    "EACH(gx[at] = (W)y[at] * ((W)g[at] - a.total) * scale;)",
)
_LOG_SOFTMAX_GRADIENT = SumKernel(
    "log_softmax_gradient",
    ("g y", "gx", ""),
    "total",
    "0",
    "a.total += (W)g[at];",
    "a.total += b.total;",
    "EACH(gx[at] = (W)g[at] - exp((W)y[at]) * a.total;)",
)
_COLUMN_SUMS = SumKernel(
    "column_sums",
    ("x", "y", ""),
    "total",
    "0",
    "a.total += (W)x[at];",
    "a.total += b.total;",
    "if (lane == 0) y[r] = a.total;",
    has_parts=True,
)


def sum_columns(x: Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> Array | None:
    """Sums a CuPy array over its first and other axes, as for the gradient of a bias.

    Args:
        x: a contiguous array of half, single or double precision.
        axis, keepdims: the arguments of ``x.sum``. The axes that are not summed must be neighbors.

    Returns:
        The sums, with the dtype of ``x``; None for unsupported arguments.

    Example:
        >>> sum_columns(x, axis=0, keepdims=False)  # doctest: +SKIP
    """
    axes = {a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,)) if a is not None}
    kept = [i for i in range(x.ndim) if i not in axes]
    is_made_for = 0 in axes and kept and len(kept) == kept[-1] + 1 - kept[0]
    if not is_made_for or refusal(x) or not x.flags.c_contiguous:
        return None
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i in kept)
    return _COLUMN_SUMS.run(_channels(*_around(x, axes)), [x], [(shape, x.dtype)])[0]


def _around(x, axis) -> Any:
    """Returns the sizes of ``x`` as three axes, of which the second is not reduced; None if the
    axes that are not reduced are not neighbors."""
    kept = [i for i in range(x.ndim) if i not in axis]
    first, last = (kept[0], kept[-1] + 1) if kept else (x.ndim, x.ndim)
    if last - first != len(kept):
        return None
    return tuple(math.prod(x.shape[part]) for part in np.s_[:first, first:last, last:])


def _refuse_axes(axis, x, *others):
    reason = refusal(x, *others)
    if reason is None and _around(x, axis) is None:
        reason = "the axes that are not reduced are not neighbors"
    return reason


@reference.batch_normalization.kernel(
    "cuda_reductions",
    lambda x, gamma, beta, axis, eps: _refuse_axes(axis, x, gamma, beta),
    HALF_TO_DOUBLE,
)
def batch_normalization(
    x: Array, gamma: Array, beta: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.batch_normalization`."""
    view, axes, back = in_order(x, axis)
    sizes = _around(view, axes)
    kept = tuple(1 if i in axis else n for i, n in enumerate(x.shape))
    outs = [(kept, wide_dtype(x))] * 3
    mean, inverse_std, var = _STATISTICS.run(_channels(*sizes), [view], outs, [eps])
    y = NORMALIZE.run([view], [gamma, beta, mean, inverse_std], sizes)
    if y is not None:
        return y if back is None else y.transpose(back), mean, inverse_std, var
    normalize = cuda.elementwise(
        "T x, G gamma, B beta, W mean, W inverse_std",
        "T y",
        "y = ((W)x - mean) * (inverse_std * (W)gamma) + (W)beta;",
        "mpchain_normalize",
    )
    return normalize(x, gamma, beta, mean, inverse_std), mean, inverse_std, var


@reference.batch_normalization_gradient.kernel(
    "cuda_reductions",
    lambda g, x, *others: (
        _refuse_axes(others[-1], x, g, *others[:-1])
        or (None if g.dtype == x.dtype else "a gradient of another dtype")
    ),
    HALF_TO_DOUBLE,
)
def batch_normalization_gradient(
    g: Array, x: Array, gamma: Array, mean: Array, inverse_std: Array, axis: tuple[int, ...]
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.batch_normalization_gradient`."""
    view, axes, back = in_order(x, axis)
    sizes = _around(view, axes)
    mean, inverse_std = (v.astype(wide_dtype(x), copy=False) for v in (mean, inverse_std))
    g_view = g if back is None else g.transpose(0, *range(2, x.ndim), 1)
    g_view, count = cuda.get_array_module(g).ascontiguousarray(g_view), x.size // mean.size
    arrays, outs = [g_view, view, mean, inverse_std], [(mean.shape, wide_dtype(x))] * 2
    g_gamma, g_beta = _PARAMETER_GRADIENTS.run(_channels(*sizes), arrays, outs)
    of_channels = [gamma, mean, inverse_std, g_gamma, g_beta]
    gx = NORMALIZE_GRADIENT.run([g_view, view], of_channels, sizes, [count])
    if gx is not None:
        return gx if back is None else gx.transpose(back), g_gamma, g_beta
    gradient = cuda.elementwise(
        "T g, T x, G gamma, W mean, W inverse_std, W g_gamma, W g_beta, W count",
        "T gx",
        """const W normalized = ((W)x - mean) * inverse_std;
        gx = ((W)g - (normalized * g_gamma + g_beta) / count) * ((W)gamma * inverse_std);""",
        "mpchain_normalization_gradient",
    )
    return gradient(g, x, gamma, mean, inverse_std, g_gamma, g_beta, count), g_gamma, g_beta


def follow_statistics(
    running: Sequence[Array], batch: Sequence[Array], decay: float, factor: float
) -> None:
    """Updates the running mean and variance with the mean and variance of a batch, in place.

    Args:
        running: mean and variance (C,).
        batch: mean and variance, of any shape with C elements.
        decay: the fraction of the running statistics that is kept.
        factor: a factor on the variance of the batch.

    Example:
        >>> follow_statistics([mean, var], [batch_mean, batch_var], 0.9, 1.1)  # doctest: +SKIP
    """
    follow = cuda.elementwise(
        "T mean, T var, T decay, T part, T part_of_var",
        "R running_mean, R running_var",
        """running_mean = (R)((T)running_mean * decay + mean * part);
        running_var = (R)((T)running_var * decay + var * part_of_var);""",
        "mpchain_follow_statistics",
    )
    mean, var = (x.reshape(running[0].shape) for x in batch)
    follow(mean, var, decay, 1 - decay, (1 - decay) * factor, *running)


def _refuse_samples(axis, x, gamma, *others):
    return refusal(x, gamma, *others) or (
        "another shape of gamma" if _parameters(x, gamma, axis) is None else None
    )


def _parameters(x, gamma, axis) -> Any:
    """Returns the number of groups that have parameters, and the number of parameters of each
    group; None for unsupported shapes.

    Parameters may be for the elements of trailing axes, or for channels in groups, where x is (N,
    groups, channels, size).
    """
    n_rows = math.prod(x.shape[: -len(axis)])
    if tuple(a % x.ndim for a in axis) != tuple(range(x.ndim - len(axis), x.ndim)):
        return None
    if gamma.shape == x.shape[x.ndim - gamma.ndim :] and gamma.size == x.size // n_rows:
        return 1, gamma.size
    is_by_group = x.ndim == 4 and axis == (2, 3) and gamma.shape == (1, *x.shape[1:3], 1)
    return x.shape[1:3] if is_by_group else None


@reference.sample_normalization.kernel(
    "cuda_reductions",
    lambda x, gamma, beta, axis, eps: _refuse_samples(axis, x, gamma, beta),
    HALF_TO_DOUBLE,
)
def sample_normalization(
    x: Array, gamma: Array, beta: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.sample_normalization`."""
    kept = (*x.shape[: -len(axis)], *(1 for _ in axis))
    n_rows = math.prod(kept)
    shape = _samples(n_rows, x.size // n_rows, *_parameters(x, gamma, axis))
    outs = [(x.shape, x.dtype), *[(kept, wide_dtype(x))] * 2]
    y, mean, inverse_std = _NORMALIZATION.run(shape, [x, gamma, beta], outs, [eps])
    return y, mean, inverse_std


@reference.sample_normalization_gradient.kernel(
    "cuda_reductions",
    lambda g, x, gamma, mean, inverse_std, axis: _refuse_samples(
        axis, x, gamma, g, mean, inverse_std
    ),
    HALF_TO_DOUBLE,
)
def sample_normalization_gradient(
    g: Array, x: Array, gamma: Array, mean: Array, inverse_std: Array, axis: tuple[int, ...]
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.sample_normalization_gradient`."""
    groups, per = _parameters(x, gamma, axis)
    n_rows = mean.size
    n = x.size // n_rows
    rows = _samples(n_rows, n, groups, per)
    arrays = [g, x, gamma, mean, inverse_std]
    (gx,) = _NORMALIZATION_GRADIENT.run(rows, arrays, [(x.shape, x.dtype)])
    channels = _channels(n_rows // groups, groups * per, n // per, groups, per)
    outs = [(gamma.shape, gamma.dtype)] * 2
    g_gamma, g_beta = _PARAMETER_GRADIENTS.run(channels, [g, x, mean, inverse_std], outs)
    return gx, g_gamma, g_beta


def _along(kernel, axis, *arrays, numbers=()):
    x = arrays[0]
    axis %= x.ndim
    shape = row_sums(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
    return kernel.run(shape, arrays, [(x.shape, x.dtype)], numbers)[0]


@reference.softmax.kernel(
    "cuda_reductions", lambda x, axis, scale=1.0: _refuse_empty(x), HALF_TO_DOUBLE
)
def softmax(x: Array, axis: int, scale: float = 1.0) -> Array:
    """See :func:`mpchain.kernels.reference.softmax`."""
    return _along(_SOFTMAX, axis, x, numbers=[-math.inf, float(scale)])


@reference.log_softmax.kernel("cuda_reductions", lambda x, axis: _refuse_empty(x), HALF_TO_DOUBLE)
def log_softmax(x: Array, axis: int) -> Array:
    """See :func:`mpchain.kernels.reference.log_softmax`."""
    return _along(_LOG_SOFTMAX, axis, x, numbers=[-math.inf])


@reference.softmax_gradient.kernel(
    "cuda_reductions", lambda g, y, axis, scale=1.0: _refuse_empty(g), HALF_TO_DOUBLE
)
def softmax_gradient(g: Array, y: Array, axis: int, scale: float = 1.0) -> Array:
    """See :func:`mpchain.kernels.reference.softmax_gradient`."""
    return _along(_SOFTMAX_GRADIENT, axis, g, y, numbers=[float(scale)])


@reference.log_softmax_gradient.kernel(
    "cuda_reductions", lambda g, y, axis: _refuse_empty(g), HALF_TO_DOUBLE
)
def log_softmax_gradient(g: Array, y: Array, axis: int) -> Array:
    """See :func:`mpchain.kernels.reference.log_softmax_gradient`."""
    return _along(_LOG_SOFTMAX_GRADIENT, axis, g, y)
