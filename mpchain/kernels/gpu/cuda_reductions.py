"""Normalizations and softmax on GPUs: kernels that compute a few sums, and what follows from them.

A group of threads, its lanes, computes the sums of one row or channel: each lane those of some
elements, which are then added up pairwise in shared memory. Few long sums are computed in parts, so
that there are threads enough for a GPU, and joined by a second kernel. The order of a sum is always
the same. Half precision is computed in single.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.kernels import reference
from mpchain.kernels.operation import HALF_TO_DOUBLE, SINGLE_OR_DOUBLE
from mpchain.typing import Array

_THREADS, _USUAL, _BLOCKS = 1024, 256, 1 << 20
"""The most threads of a block: across sums, and else; the most blocks of a grid."""
_TEXTS = "name fields zero first add last merge finish".split()
_FILLING = 1 << 19
"""Threads enough for a GPU: of more, sums need no parts."""
_FEW = 32
"""Elements that a thread adds in a row, if there are threads enough."""
_C_TYPES = {"e": "float16", "f": "float", "d": "double"}
_ALL_C_TYPES = _C_TYPES | {"i": "int", "l": "long long", "q": "long long"}
_FIELDS = "n_sums n inner outer span far near groups per parts chunk".split()
_SHAPE = np.dtype([*((name, np.int64) for name in _FIELDS), ("lanes", "i4"), ("across", "i4")])

# Element j of sum r is at start(r) + (j / span) * far + (j % span) * near. Neighboring threads work
# on neighbors in memory: on elements of one sum, or across sums. A part of a sum has the elements
# from part * chunk on.
_TEXT = """{header}
typedef {wide} W;
struct Sums {{ W {fields}; }};
struct Shape {{ long long {shape}; int lanes, across; }};
#define EACH(...) {{ \\
  long long row = (begin + lane) / shape.span, place = (begin + lane) % shape.span; \\
  _Pragma("unroll 4") for (long long j = begin + lane; j < end; j += shape.lanes) {{ \\
    const long long at = start + row * shape.far + place * shape.near; \\
    __VA_ARGS__ \\
    row += row_step; place += place_step; \\
    if (place >= shape.span) {{ place -= shape.span; row++; }} \\
  }} \\
}}
extern "C" __launch_bounds__({threads}) __global__ void mpchain_{name}(
    const Shape shape, {parameters}) {{
  __shared__ Sums shared[{threads}];
  const int n_groups = blockDim.x / shape.lanes;
  const int lane = shape.across ? threadIdx.x / n_groups : threadIdx.x % shape.lanes;
  const int group = shape.across ? threadIdx.x % n_groups : threadIdx.x / shape.lanes;
  const long long row_step = shape.lanes / shape.span, place_step = shape.lanes % shape.span;
  Sums* mine = shared + (lane * n_groups + group);
  const long long n_all = shape.n_sums * shape.parts;
  for (long long first = (long long)blockIdx.x * n_groups; first < n_all;
       first += (long long)gridDim.x * n_groups) {{
    const long long whole = first + group, r = whole % shape.n_sums;
    const long long start = r / shape.inner * shape.outer + r % shape.inner;
    const long long begin = whole / shape.n_sums * shape.chunk;
    const long long end = begin + shape.chunk < shape.n ? begin + shape.chunk : shape.n;
    Sums a = {{ {zero} }};
    if (whole < n_all) {{ {first} EACH({add}) {last} }}
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


class _Kernel(NamedTuple):
    """The parts of a kernel.

    Attributes:
        name: its name.
        parameters: names of arrays that are read, of arrays that are written, and of numbers:
            floating point, or integers (``long:NAME``).
        fields, zero: the sums, and what they are without elements.
        add: adds the element at ``at`` to the sums ``a``.
        merge: adds the sums ``b`` to the sums ``a``.
        finish: uses the sums ``a`` of sum ``r``; ``EACH`` repeats a statement for its elements.
        first, last: before and after the elements of a thread, which begin with ``begin + lane``.
        has_parts: whether long sums are computed in parts: ``finish`` uses no elements.
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
        """Returns the text for arrays of these dtypes, in the order of the parameters, and the most
        threads of a block."""
        reads, writes, numbers = (names.split() for names in self.parameters)
        types = [_ALL_C_TYPES[dtype] for dtype in dtypes]
        words = [f"const {kind}* {name}" for kind, name in zip(types, reads)]
        words += [f"{kind}* {name}" for kind, name in zip(types[len(reads) :], writes, strict=True)]
        words += [f"const W {x}".replace("W long:", "long long ") for x in numbers]
        return _TEXT.format(
            header="#include <cupy/float16.cuh>" if "e" in dtypes else "",
            wide=_C_TYPES[wide],
            shape=", ".join(_FIELDS),
            threads=threads,
            parameters=", ".join(words),
            **{field: getattr(self, field) for field in _TEXTS},
        )

    def run(
        self, shape: dict, ins: Sequence[Array], outs: Sequence[tuple], numbers: Sequence = ()
    ) -> list[Array]:
        """Returns new arrays, of the shapes and dtypes ``outs``."""
        xp, wide = cuda.get_array_module(ins[0]), _wide(ins[0])
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


@functools.cache
def _compiled(kernel, dtypes, wide, threads):
    return cuda.raw(kernel.text(dtypes, wide, threads), f"mpchain_{kernel.name}")


@functools.cache
def _stages(kernel):
    """Returns the kernels of the parts of sums, and of the sums from their parts."""
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


def _wide(x):
    return np.promote_types(x.dtype, np.float32)


def _power_of_two(n):
    return 1 << max(n - 1, 0).bit_length()


def _lanes(n, across):
    most = 32 if n <= 1024 or across else _USUAL
    return min(most, _power_of_two(-(-n // 4) if across else n))


def _parts(n, n_sums, across, **_):
    """Returns in how many parts sums are computed: in one unless threads are few and busy."""
    lanes = _lanes(n, across)
    return max(1, min(-(-n // (lanes * _FEW)), _FILLING // (n_sums * lanes)))


@functools.lru_cache(maxsize=1024)
def _sized(across, parts=1, **sizes):
    """Returns the first argument of a kernel, its grid and its block."""
    n, n_sums = sizes["n"], sizes["n_sums"] * parts
    sizes |= {"parts": parts, "chunk": -(-n // parts)}
    lanes = _lanes(n, across)
    groups = min(_power_of_two(n_sums), 32 if across else max(256 // lanes, 1))
    table = np.zeros(1, _SHAPE)
    for name, value in {**sizes, "lanes": lanes, "across": across}.items():
        table[name] = value
    return table, (min(-(-n_sums // groups), _BLOCKS),), (lanes * groups,)


def _rows(outer, n, inner=1, groups=1, per=1):
    """Sums over the second of three axes."""
    shape = {"n_sums": outer * inner, "n": n, "inner": inner, "outer": n * inner, "span": n}
    return shape | {"far": 0, "near": inner, "groups": groups, "per": per, "across": inner > 1}


def _channels(outer, n, inner, groups=0, per=1):
    """Sums over the first and the last of three axes."""
    shape = {"n_sums": n, "n": outer * inner, "inner": 1, "outer": inner, "span": inner}
    shape |= {"far": n * inner, "near": 1, "groups": groups, "per": per}
    return shape | {"across": inner == 1}


def _refusal(*arrays):
    if not all(map(cuda.is_gpu_array, arrays)):
        return "not CuPy arrays"
    if any(x.dtype.char not in _C_TYPES for x in arrays):
        return "not arrays of half, single or double precision"
    return _refuse_empty(arrays[0])


def _refuse_empty(x):
    return None if x.size else "no elements"


# Each thread sums deviations from its first element, which need no division; those of threads are
# joined by T. F. Chan et al., 1979.
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
_STATISTICS = _Kernel(
    "statistics",
    ("x", "mean inverse_std var", "eps"),
    **_MOMENTS,
    finish="""if (lane == 0) {
        const W v = a.squares / a.count;
        mean[r] = a.mean; var[r] = v; inverse_std[r] = (W)1 / sqrt(v + eps);
      }""",
    has_parts=True,
)
_PARAMETER_GRADIENTS = _Kernel(
    "parameter_gradients",
    ("g x mean inverse_std", "g_gamma g_beta", ""),
    "gamma, beta",
    "0, 0",
    """const long long m = row * shape.groups + r / shape.per;
    const W v = g[at];
    a.beta += v; a.gamma += v * (((W)x[at] - mean[m]) * inverse_std[m]);""",
    "a.beta += b.beta; a.gamma += b.gamma;",
    "if (lane == 0) { g_gamma[r] = a.gamma; g_beta[r] = a.beta; }",
    has_parts=True,
)


_NORMALIZATION = _Kernel(
    "sample_normalization",
    ("x gamma beta", "y mean inverse_std", "eps"),
    **_MOMENTS,
    finish="""const W scale = (W)1 / sqrt(a.squares / a.count + eps);
      const long long size = shape.n / shape.per, k0 = r % shape.groups * shape.per;
      if (lane == 0) { mean[r] = a.mean; inverse_std[r] = scale; }
      EACH(const long long k = k0 + (size == 1 ? j : j / size);
        y[at] = ((W)x[at] - a.mean) * scale * (W)gamma[k] + (W)beta[k];)""",
)
_NORMALIZATION_GRADIENT = _Kernel(
    "sample_normalization_gradient",
    ("g x gamma mean inverse_std", "gx", ""),
    "sum, product",
    "0, 0",
    """const long long size = shape.n / shape.per, k0 = r % shape.groups * shape.per;
      const W h = (W)g[at] * (W)gamma[k0 + (size == 1 ? j : j / size)];
      a.sum += h; a.product += h * (((W)x[at] - mean[r]) * inverse_std[r]);""",
    "a.sum += b.sum; a.product += b.product;",
    """const long long size = shape.n / shape.per, k0 = r % shape.groups * shape.per;
      EACH(const W h = (W)g[at] * (W)gamma[k0 + (size == 1 ? j : j / size)];
        const W normalized = ((W)x[at] - mean[r]) * inverse_std[r];
        gx[at] = (h - (normalized * a.product + a.sum) / (W)shape.n) * inverse_std[r];)""",
)
# The sum of exponentials is scaled by that of the largest element so far, -infinity (low) at first.
_EXPONENTIALS = {
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
_SOFTMAX = _Kernel(
    "softmax",
    ("x", "y", "low scale"),
    **_EXPONENTIALS | {"add": _EXPONENTIALS["add"].replace("x[at]", "(W)x[at] * scale")},
    finish="EACH(y[at] = exp((W)x[at] * scale - a.top) / a.total;)",
)
_LOG_SOFTMAX = _Kernel(
    "log_softmax",
    ("x", "y", "low"),
    **_EXPONENTIALS,
    finish="const W log_total = log(a.total); EACH(y[at] = (W)x[at] - a.top - log_total;)",
)
_SOFTMAX_GRADIENT = _Kernel(
    "softmax_gradient",
    ("g y", "gx", "scale"),
    "total",
    "0",
    "a.total += (W)g[at] * (W)y[at];",
    "a.total += b.total;",
    "EACH(gx[at] = (W)y[at] * ((W)g[at] - a.total) * scale;)",
)
_LOG_SOFTMAX_GRADIENT = _Kernel(
    "log_softmax_gradient",
    ("g y", "gx", ""),
    "total",
    "0",
    "a.total += (W)g[at];",
    "a.total += b.total;",
    "EACH(gx[at] = (W)g[at] - exp((W)y[at]) * a.total;)",
)


_CROSS_ENTROPY = _Kernel(
    "cross_entropy",
    ("x t class_weight", "loss weight top total", "low long:ignored long:is_weighted"),
    **_EXPONENTIALS,
    finish="""if (lane == 0) {
        const long long label = t[r];
        const bool counts = label != ignored, exists = label >= 0 && label < shape.n;
        const W v = exists ? (W)x[start + label * shape.near] : low - low;  // NaN
        const W w = !counts ? 0 : is_weighted && exists ? (W)class_weight[label] : (W)1;
        loss[r] = counts ? (log(a.total) - (v - a.top)) * w : (W)0;
        weight[r] = w; top[r] = a.top; total[r] = a.total;
      }""",
)
_MEAN_LOSS = _Kernel(
    "mean_loss",
    ("loss t", "mean scale", "long:ignored long:size"),
    "total, count",
    "0, 0",
    "a.total += loss[at]; a.count += t[at] != ignored;",
    "a.total += b.total; a.count += b.count;",
    """if (lane == 0) {
        const W count = size ? (W)size : a.count > 1 ? a.count : (W)1;
        *mean = a.total / count; *scale = (W)1 / count;
      }""",
    has_parts=True,
)


def _around(x, axis) -> Any:
    """The shape of ``x`` as three axes, reduced but for the second; None if that cannot be."""
    kept = [i for i in range(x.ndim) if i not in axis]
    first, last = (kept[0], kept[-1] + 1) if kept else (x.ndim, x.ndim)
    if last - first != len(kept):
        return None
    return tuple(math.prod(x.shape[part]) for part in np.s_[:first, first:last, last:])


def _refuse_axes(axis, x, *others):
    reason = _refusal(x, *others)
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
    kept = tuple(1 if i in axis else n for i, n in enumerate(x.shape))
    outs = [(kept, _wide(x))] * 3
    mean, inverse_std, var = _STATISTICS.run(_channels(*_around(x, axis)), [x], outs, [eps])
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
    mean, inverse_std = (v.astype(_wide(x), copy=False) for v in (mean, inverse_std))
    shape, outs = _channels(*_around(x, axis)), [(mean.shape, _wide(x))] * 2
    g_gamma, g_beta = _PARAMETER_GRADIENTS.run(shape, [g, x, mean, inverse_std], outs)
    gradient = cuda.elementwise(
        "T g, T x, G gamma, W mean, W inverse_std, W g_gamma, W g_beta, W count",
        "T gx",
        """const W normalized = ((W)x - mean) * inverse_std;
        gx = ((W)g - (normalized * g_gamma + g_beta) / count) * ((W)gamma * inverse_std);""",
        "mpchain_normalization_gradient",
    )
    count = x.size // mean.size
    return gradient(g, x, gamma, mean, inverse_std, g_gamma, g_beta, count), g_gamma, g_beta


def follow_statistics(
    running: Sequence[Array], batch: Sequence[Array], decay: float, factor: float
) -> None:
    """Moves running mean and variance towards those of a batch, in place.

    Args:
        running: mean and variance (C,).
        batch: mean and variance, of any shape of C elements.
        decay: the fraction of the running statistics that is kept.
        factor: on the variance of the batch.

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
    return _refusal(x, gamma, *others) or (
        "another shape of gamma" if _parameters(x, gamma, axis) is None else None
    )


def _parameters(x, gamma, axis) -> Any:
    """Returns how many groups of samples have parameters, and how many each; None if others.

    Those are the elements of trailing axes, or channels in groups: x (N, groups, channels, size).
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
    SINGLE_OR_DOUBLE,
)
def sample_normalization(
    x: Array, gamma: Array, beta: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.sample_normalization`."""
    kept = (*x.shape[: -len(axis)], *(1 for _ in axis))
    n_rows = math.prod(kept)
    shape = _rows(n_rows, x.size // n_rows, 1, *_parameters(x, gamma, axis))
    outs = [(x.shape, x.dtype), (kept, x.dtype), (kept, x.dtype)]
    y, mean, inverse_std = _NORMALIZATION.run(shape, [x, gamma, beta], outs, [eps])
    return y, mean, inverse_std


@reference.sample_normalization_gradient.kernel(
    "cuda_reductions",
    lambda g, x, gamma, mean, inverse_std, axis: _refuse_samples(
        axis, x, gamma, g, mean, inverse_std
    ),
    SINGLE_OR_DOUBLE,
)
def sample_normalization_gradient(
    g: Array, x: Array, gamma: Array, mean: Array, inverse_std: Array, axis: tuple[int, ...]
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.sample_normalization_gradient`."""
    groups, per = _parameters(x, gamma, axis)
    n_rows = mean.size
    n = x.size // n_rows
    rows = _rows(n_rows, n, 1, groups, per)
    arrays = [g, x, gamma, mean, inverse_std]
    (gx,) = _NORMALIZATION_GRADIENT.run(rows, arrays, [(x.shape, x.dtype)])
    channels = _channels(n_rows // groups, groups * per, n // per, groups, per)
    outs = [(gamma.shape, x.dtype)] * 2
    g_gamma, g_beta = _PARAMETER_GRADIENTS.run(channels, [g, x, mean, inverse_std], outs)
    return gx, g_gamma, g_beta


def _along(kernel, axis, *arrays, numbers=()):
    x = arrays[0]
    axis %= x.ndim
    shape = _rows(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
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


class CrossEntropy(NamedTuple):
    """What the gradient of the cross entropy needs, by sample: (N, 1, ...).

    Attributes:
        t: the labels.
        weight: of the sample in the loss, but for ``scale``.
        top, total: the maximum of x, and the sum of exp(x - top).
        scale: factor on all weights.

    Example:
        >>> y, kept = cross_entropy(x, t, 0, None, -1, "mean")  # doctest: +SKIP
        >>> kept.weight  # doctest: +SKIP
        array([[1.], [1.]])
    """

    t: Array
    weight: Array
    top: Array
    total: Array
    scale: Any


def is_fused_cross_entropy(x: Array, t: Array, class_weight: Array | None) -> bool:
    """Returns whether :func:`cross_entropy` takes these arrays.

    Example:
        >>> is_fused_cross_entropy(np.ones((1, 2)), np.zeros(1, int), None)
        False
    """
    arrays = [x] if class_weight is None else [x, class_weight]
    is_integer = cuda.is_gpu_array(t) and t.dtype.char in _ALL_C_TYPES
    return is_integer and _refusal(*arrays) is None


def cross_entropy(
    x: Array,
    t: Array,
    divisor: int,
    class_weight: Array | None,
    ignore_label: int,
    reduce: str,
) -> tuple[Array, CrossEntropy]:
    """Cross entropy of the softmax along axis 1 with labels, of CuPy arrays.

    A label that does not exist has the loss NaN.

    Args:
        divisor: with reduce='mean', what the sum is divided by; 0 for the number of labels that are
            not ignored.
        x, t, class_weight, ignore_label, reduce: see ``F.softmax_cross_entropy``.

    Returns:
        The loss, and what :func:`cross_entropy_gradient` needs.

    Example:
        >>> y, kept = cross_entropy(x, t, 0, None, -1, "mean")  # doctest: +SKIP
    """
    wide, by_sample = _wide(x), (x.shape[0], 1, *x.shape[2:])
    is_mean, is_weighted = reduce == "mean", class_weight is not None
    weights = x if class_weight is None else class_weight.astype(x.dtype, copy=False)
    shape = _rows(x.shape[0], x.shape[1], math.prod(x.shape[2:]))
    outs = [(t.shape, wide if is_mean else x.dtype), *[(by_sample, wide)] * 3]
    numbers = [-math.inf, int(ignore_label), int(is_weighted)]
    loss, first, second, third = _CROSS_ENTROPY.run(shape, [x, t, weights], outs, numbers)
    scale = wide.type(1)
    if is_mean:
        numbers = [int(ignore_label), divisor]
        outs = [((), x.dtype), ((), wide)]
        loss, scale = _MEAN_LOSS.run(_rows(1, t.size), [loss, t], outs, numbers)
    return loss, CrossEntropy(t.reshape(by_sample), first, second, third, scale)


def cross_entropy_gradient(g: Array, x: Array, kept: CrossEntropy) -> Array:
    """Returns the gradient of x from that of the loss; see :func:`cross_entropy`.

    Example:
        >>> gx = cross_entropy_gradient(g, x, kept)  # doctest: +SKIP
    """
    gradient = cuda.elementwise(
        "G g, T x, L t, W weight, W top, W total, W scale, int64 n, int64 inner",
        "T gx",
        """const bool is_label = i / inner % n == t;
        gx = (exp((W)x - top) / total - (W)is_label) * (weight * scale * (W)g);""",
        "mpchain_cross_entropy_gradient",
    )
    g = g.reshape(kept.t.shape) if g.ndim else g
    return gradient(g, x, *kept, x.shape[1], math.prod(x.shape[2:]))
