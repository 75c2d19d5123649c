"""Arguments for operations of :mod:`mpchain.kernels`, for the tests and the GPU doctor."""

from collections.abc import Callable

import numpy as np

from mpchain import kernels
from mpchain.backends.dtypes import is_floating
from mpchain.kernels.cpu.channels_last import as_last
from mpchain.kernels.window import Window
from mpchain.utils.conv import get_conv_outsize


def _random(*shape):
    return np.random.uniform(-2, 2, shape)


def _window(size, k, s=1, p=0, d=1, groups=1, cover_all=False):
    n = len(size)
    k, s, p, d = ((v,) * n if isinstance(v, int) else v for v in (k, s, p, d))
    axes = zip(size, k, s, p, d)
    out = tuple(get_conv_outsize(i, k, s, p, cover_all, d) for i, k, s, p, d in axes)
    return Window(k, s, p, d, groups, tuple(size), out)


WINDOWS: dict[str, tuple] = {
    "1d": (2, 3, 5, _window((7,), 3, 2, 1)),
    "2d": (3, 3, 5, _window((5, 7), (3, 2), (1, 2), (1, 0))),
    "3d": (1, 1, 3, _window((3, 4, 3), 2)),
    "dilated": (2, 1, 1, _window((7, 9), 3, 1, 2, 2)),
    "grouped": (3, 4, 6, _window((5, 3), 3, 1, 1, groups=2)),
    "depthwise": (2, 3, 3, _window((5, 5), 3, 1, 1, groups=3)),
    "cover_all": (2, 2, 3, _window((7, 6), 2, 3, cover_all=True)),
    "remainder": (2, 2, 3, _window((8, 6), 2, 3)),
    "pointwise": (3, 5, 7, _window((5, 3), 1)),
    "pointwise strided": (3, 5, 7, _window((5, 3), 1, 2)),
    "pointwise padded": (2, 3, 1, _window((2, 3), 1, 1, 1)),
    "pointwise grouped": (2, 4, 2, _window((2, 3), 1, groups=2)),
    "pointwise 1d": (1, 1, 1, _window((1,), 1)),
    "large": (2, 9, 10, _window((12, 11), 3, 1, 1)),
    "large, depthwise": (2, 9, 9, _window((14, 13), (3, 2), 1, (1, 0), 2, groups=9)),
    "large, grouped, strided": (3, 18, 16, _window((23, 24), 3, 2, 1, groups=2)),
    "large, three taps": (3, 96, 80, _window((21, 20), 3, 1, 1)),
    "large volume": (1, 8, 3, _window((6, 5, 6), 2, cover_all=True)),
    "many channels": (2, 130, 4, _window((3, 3), 3, 1, 1)),
    "many channels pointwise": (2, 256, 256, _window((3, 2), 1)),
    "large pointwise": (2, 60, 50, _window((37, 23), 1)),
    "large pointwise, strided": (3, 140, 60, _window((25, 23), 1, (1, 2))),
    "large pointwise, few pixels": (3, 150, 800, _window((7,), 1)),
    "large pointwise, strided, few pixels": (4, 300, 250, _window((4, 3, 5), 1, 2)),
    "large pointwise, past the end": (4, 300, 250, _window((4, 6), 1, 2, cover_all=True)),
    "no samples": (0, 3, 5, _window((5, 7), 3, 1, 1)),
    "no samples pointwise": (0, 3, 5, _window((5, 3), 1)),
}


def _convolutions(*roles):
    """Returns cases of a function of the convolution family, whose arguments have these roles."""

    def make(n, c, o, window):
        shapes = {
            "x": (n, c, *window.in_size),
            "W": (o, c // window.groups, *window.ksize),
            "y": (n, o, *window.out_size),
        }
        return lambda: (*(_random(*shapes[role]) for role in roles), window)

    return {name: make(*case) for name, case in WINDOWS.items()}


MANY_WINDOWS = {
    "many windows": (2, 90, None, _window((40, 42), 2, 2)),
    "many windows, padded": (4, 40, None, _window((45, 44), (3, 2), 2, (2, 1), cover_all=True)),
    "many windows, dilated": (3, 40, None, _window((30, 31), 3, 1, 1, (2, 1))),
    "many windows of sequences": (4, 40, None, _window((450,), 4, 2, 1, cover_all=True)),
}


def _poolings(*roles, more=None):
    def make(n, c, _, window):
        def arguments():
            shapes = {"x": (n, c, *window.in_size), "y": (n, c, *window.out_size)}
            shapes["elements"] = (n, c, window.n_elements, *window.out_size)
            places = np.random.randint(0, window.n_elements, shapes["y"], np.int32)
            given = {"places": places, **{k: _random(*s) for k, s in shapes.items()}}
            return (*(given[role] for role in roles), window)

        return arguments

    cases = {**WINDOWS, **(more or {})}
    return {name: make(*case) for name, case in cases.items() if case[3].groups == 1}


def _along_axes(n_arrays=1):
    shapes = {
        "matrix": ((3, 5), 1),
        "many rows": ((261, 260), 1),
        "first axis": ((3, 5), 0),
        "last axis": ((2, 3, 7), -1),
        "images": ((2, 3, 5, 1), 1),
        "one class": ((3, 1), 1),
        "no samples": ((0, 3), 1),
        "vector": ((5,), 0),
        "long rows": ((2, 1500), 1),
        "long columns": ((300, 40), 0),
    }
    return {
        name: lambda s=s, axis=axis: (*(_random(*s) for _ in range(n_arrays)), axis)
        for name, (s, axis) in shapes.items()
    }


def _rows():
    return {
        "matrix": lambda: (_random(3, 5),),
        "one row": lambda: (_random(7),),
        "many rows": lambda: (_random(261, 260),),
        "many columns": lambda: (_random(260, 261).T,),
        "no rows": lambda: (_random(0, 3),),
    }


def _normalizations(*roles):
    """Returns cases of batch normalization: shapes of x, and the reduced axes."""
    shapes = {
        "images": ((2, 3, 5, 7), (0, 2, 3)),
        "many channels": ((3, 70, 24, 20), (0, 2, 3)),
        "volumes": ((2, 3, 2, 3, 2), (0, 2, 3, 4)),
        "sequences": ((2, 3, 5), (0, 2)),
        "few elements": ((5, 3, 1, 2), (0, 2, 3)),
        "matrix": ((5, 3), (0,)),
        "other axes": ((2, 3, 5, 7), (0, 1)),
        "no samples": ((0, 3, 5, 7), (0, 2, 3)),
    }

    def make(shape, axis):
        kept = tuple(1 if i in axis else n for i, n in enumerate(shape))

        def arguments():
            given = {"x": _random(*shape) + 1, "g": _random(*shape), "axis": axis, "eps": 1e-3}
            given |= {name: _random(*kept) for name in ("gamma", "beta")}
            given |= {"mean": _random(*kept), "inverse_std": np.abs(_random(*kept)) + 0.5}
            return tuple(given[role] for role in roles)

        return arguments

    return {name: make(*case) for name, case in shapes.items()}


def _sample_normalizations(*roles):
    """Returns cases of layer and group normalization: shapes of x and gamma, and reduced axes."""
    shapes = {
        "rows": ((5, 7), (7,), (-1,)),
        "long rows": ((2, 1500), (1500,), (-1,)),
        "many rows": ((70, 3), (3,), (-1,)),
        "sequences": ((2, 3, 7), (7,), (-1,)),
        "images": ((2, 3, 5, 7), (5, 7), (-2, -1)),
        "groups": ((2, 3, 4, 5), (1, 3, 4, 1), (2, 3)),
        "one group": ((3, 1, 6, 1), (1, 1, 6, 1), (2, 3)),
        "one gamma": ((3, 7), (1,), (-1,)),
        "large rows": ((130, 70), (70,), (-1,)),
        "large images": ((5, 3, 30, 20), (30, 20), (-2, -1)),
        "large groups": ((6, 4, 8, 50), (1, 4, 8, 1), (2, 3)),
        "large groups of a channel": ((6, 31, 1, 50), (1, 31, 1, 1), (2, 3)),
        "one large row": ((1, 9000), (9000,), (-1,)),
        "many rows of one": ((9000, 1), (1,), (-1,)),
        "no samples": ((0, 7), (7,), (-1,)),
    }

    def make(shape, of_gamma, axis):
        reduced = {a % len(shape) for a in axis}
        kept = tuple(1 if i in reduced else n for i, n in enumerate(shape))

        def arguments():
            given = {"x": _random(*shape) + 1, "g": _random(*shape), "axis": axis, "eps": 1e-3}
            given |= {name: _random(*of_gamma) for name in ("gamma", "beta")}
            given |= {"mean": _random(*kept), "inverse_std": np.abs(_random(*kept)) + 0.5}
            return tuple(given[role] for role in roles)

        return arguments

    return {name: make(*case) for name, case in shapes.items()}


def _shifts():
    """Returns cases of shifting and scaling: shapes of x, and of the shifts and scales."""
    shapes = {
        "rows": ((5, 7), (1, 7)),
        "images": ((2, 3, 5, 7), (1, 3, 1, 1)),
        "large images": ((3, 5, 70, 71), (1, 5, 1, 1)),
        "large rows of channels": ((5, 70, 7, 31), (1, 70, 1, 1)),
        "large, by the last axis": ((40, 40, 60), (1, 1, 60)),
        "large, by all but the last axis": ((40, 40, 60), (40, 40, 1)),
        "as many of another axis": ((3, 40, 40, 40), (1, 1, 40, 1)),
        "no samples": ((0, 3, 5, 7), (1, 3, 1, 1)),
    }

    def make(shape, of_channels):
        return lambda: (_random(*shape), *(_random(*of_channels) for _ in range(3)))

    return {name: make(*case) for name, case in shapes.items()}


_DROPOUT = kernels.Dropout(0.3, False, kernels.Counters(5, 2, 1, 2, 3, 4))


def _attentions(of_gradient):
    """Returns cases of attention: shapes of query, key and value."""
    shapes = {
        "one head": ((2, 1, 5, 8), (2, 1, 5, 8), (2, 1, 5, 8)),
        "heads": ((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 16)),
        "more queries": ((1, 2, 7, 16), (1, 2, 3, 16), (1, 2, 3, 8)),
        "one of each": ((1, 1, 1, 8), (1, 1, 1, 8), (1, 1, 1, 8)),
        "odd sizes": ((2, 2, 3, 5), (2, 2, 4, 5), (2, 2, 4, 7)),
    }

    def make(shapes, is_causal, *others):
        def arguments():
            q, k, v = (_random(*shape) for shape in shapes)
            options = 0.25, is_causal, *others
            if not of_gradient:
                return q, k, v, *options
            y, log_sums = kernels.attention.kernels[-1].compute(q, k, v, *options)
            return _random(*y.shape), q, k, v, y, log_sums, *options

        return arguments

    return {
        f"{name}{', causal' * is_causal}": make(case, is_causal)
        for name, case in shapes.items()
        for is_causal in (False, True)
    } | {"dropout": make(shapes["heads"], True, None, _DROPOUT)}


def _with_biases(cases):
    def make(case):
        def arguments():
            x, W, window = case()
            return x, W, _random(len(W)), window

        return arguments

    return {name: make(case) for name, case in cases.items()}


CASES: dict[str, dict[str, Callable[[], tuple]]] = {
    "attention": _attentions(False),
    "attention_kept": {
        "heads": lambda: (*(_random(2, 3, 4, 8) for _ in range(3)), 0.25, True, None, _DROPOUT),
    },
    "shift_and_scale": _shifts(),
    "attention_gradient": _attentions(True),
    "batch_normalization": _normalizations("x", "gamma", "beta", "axis", "eps"),
    "batch_normalization_gradient": _normalizations(
        "g", "x", "gamma", "mean", "inverse_std", "axis"
    ),
    "linear": {
        "bias": lambda: (_random(3, 5), _random(7, 5), _random(7)),
        "no bias": lambda: (_random(3, 5), _random(7, 5), None),
        "one": lambda: (_random(1, 1), _random(1, 1), _random(1)),
        "no samples": lambda: (_random(0, 5), _random(7, 5), _random(7)),
        "no features": lambda: (_random(3, 0), _random(7, 0), _random(7)),
        "few rows": lambda: (_random(5, 500), _random(600, 500), _random(600)),
        "few rows, no bias": lambda: (_random(48, 500), _random(600, 500), None),
        "many rows": lambda: (_random(49, 500), _random(600, 500), None),
    },
    "product": {
        "few rows": lambda: (_random(5, 600), _random(600, 500)),
        "few rows, transposed": lambda: (_random(600, 64).T, _random(500, 600).T),
        "few columns": lambda: (_random(600, 500), _random(20, 500).T),
        "many rows": lambda: (_random(65, 600), _random(600, 500)),
        "small": lambda: (_random(5, 3), _random(3, 2)),
        "nothing to add": lambda: (_random(5, 0), _random(0, 2)),
        "stacks": lambda: (_random(2, 3, 5), _random(2, 5, 4)),
        "stacks that broadcast": lambda: (_random(2, 1, 3, 5), _random(3, 5, 4)),
        "large stacks": lambda: (_random(4, 30, 80), _random(4, 80, 90)),
        "columns and rows": lambda: (_random(2, 3, 1), _random(2, 1, 4)),
    },
    "drop": {
        "plain": lambda: (_random(3, 5), None, kernels.Counters(0, 1, 2, 3, 4, 5), 0.25),
        "added": lambda: (_random(3, 5), _random(3, 5), kernels.Counters(0, 1, 2, 3, 4, 5), 0.5),
        "by sample": lambda: (_random(6, 7), None, kernels.Counters(2**32 - 1, 3, 1, 0, 9, 9), 0.3),
        "nothing": lambda: (_random(4, 5), None, kernels.Counters(0, 1, 0, 0, 0, 0), 0.0),
        "nearly all": lambda: (_random(9), None, kernels.Counters(0, 1, 0, 0, 0, 0), 0.999),
        "no samples": lambda: (_random(0, 5), None, kernels.Counters(0, 1, 0, 0, 0, 0), 0.5),
    },
    "draw_kept": {
        "odd": lambda: (_random(3, 5), kernels.Counters(0, 1, 2, 3, 4, 5), 0.25),
        "by sample": lambda: (_random(6, 8), kernels.Counters(2**32 - 1, 3, 1, 0, 9, 9), 0.3),
        "all": lambda: (_random(4, 5), kernels.Counters(0, 1, 0, 0, 0, 0), 0.0),
        "nearly none": lambda: (_random(8), kernels.Counters(0, 1, 0, 0, 0, 0), 0.999),
        "no samples": lambda: (_random(0, 5), kernels.Counters(0, 1, 0, 0, 0, 0), 0.5),
    },
    "sum_rows": {
        "few": lambda: (_random(3, 5), np.array([1, 0, 1]), 4),
        "none": lambda: (_random(0, 5), np.zeros(0, np.intp), 4),
        "of no axes": lambda: (_random(3), np.array([1, 0, 1]), 2),
        "of matrices": lambda: (_random(2, 2, 3, 4), np.array([[1, 0], [1, 2]], np.int32), 3),
        "many": lambda: (_random(30, 30, 80), np.random.randint(-9, 9, (30, 30), np.int8), 9),
        "of one index": lambda: (_random(200, 3), np.full(200, 2), 4),
        "in runs": lambda: (_random(200, 3), np.repeat([3, 0, 2, 4], [32, 31, 65, 72]), 5),
    },
    "sum_distinct_rows": {
        "few": lambda: (_random(3, 5), np.array([7, 0, 7]), 8),
        "none": lambda: (_random(0, 5), np.zeros(0, np.intp), 4),
        "negative": lambda: (_random(3, 2), np.array([-1, 2, -1]), 4),
        "many": lambda: (_random(900, 16), np.random.randint(-2, 300, 900), 300),
        "of many": lambda: (_random(900, 16), np.random.randint(0, 1 << 23, 900), 1 << 23),
    },
    "concatenate": {
        "rows": lambda: (0, _random(3, 5), _random(1, 5)),
        "columns": lambda: (1, _random(3, 5), _random(3, 1), _random(3, 2)),
        "last axis": lambda: (-1, _random(2, 3, 5), _random(2, 3, 4)),
        "middle axis": lambda: (1, _random(2, 3, 5), _random(2, 1, 5), _random(2, 2, 5)),
        "vectors": lambda: (0, _random(1), _random(0), _random(3)),
        "no samples": lambda: (1, _random(0, 5), _random(0, 1)),
        "one": lambda: (0, _random(2, 3)),
        "many": lambda: (1, *(_random(2, 1 + i % 3) for i in range(32))),
        "too many for one kernel": lambda: (0, *(_random(2) for _ in range(33))),
    },
    "row_sums": {
        "matrix": lambda: (_random(3, 5),),
        "many columns": lambda: (_random(4, 1030),),
        "many rows": lambda: (_random(261, 260),),
        "transposed": lambda: (_random(40, 30).T,),
        "no rows": lambda: (_random(0, 30),),
        "no columns": lambda: (_random(3, 0),),
    },
    "exponentials": {
        "matrix": lambda: (_random(3, 5),),
        "many rows": lambda: (_random(261, 260),),
        "of pixels": lambda: (_random(2, 5, 3, 4),),
    },
    "extremum": {
        "rows": lambda: (_random(3, 5), (1,), False),
        "columns": lambda: (_random(3, 5), (0,), True),
        "many rows": lambda: (_random(261, 260), (1,), True),
        "many columns": lambda: (_random(261, 260), (0,), False),
        "all": lambda: (_random(261, 260), (0, 1), False),
        "axes between others": lambda: (_random(3, 4, 5, 2000), (1, 2), False),
        "axes apart": lambda: (_random(3, 4, 5), (0, 2), False),
    },
    "running_sums": {
        "matrix": lambda: (_random(3, 5), False),
        "backward": lambda: (_random(2, 3, 7), True),
        "many rows": lambda: (_random(261, 260), False),
        "many rows, backward": lambda: (_random(261, 260), True),
        "no elements": lambda: (_random(3, 0), False),
    },
    "products": _rows(),
    "products_of_others": _rows(),
    "softmax": _along_axes(),
    "log_softmax": _along_axes(),
    "softmax_gradient": _along_axes(2),
    "log_softmax_gradient": _along_axes(2),
    "sample_normalization": _sample_normalizations("x", "gamma", "beta", "axis", "eps"),
    "sample_normalization_gradient": _sample_normalizations(
        "g", "x", "gamma", "mean", "inverse_std", "axis"
    ),
    "rms_normalization": _sample_normalizations("x", "gamma", "axis", "eps"),
    "rms_normalization_gradient": _sample_normalizations("g", "x", "gamma", "inverse_std", "axis"),
    "convolution_output": _convolutions("x", "W"),
    "convolution_with_bias": _with_biases(_convolutions("x", "W")),
    "convolution_input": _convolutions("y", "W"),
    "convolution_filter": _convolutions("x", "y"),
    "sum_windows": _poolings("x"),
    "spread_windows": _poolings("y"),
    "max_windows": _poolings("x", more=MANY_WINDOWS),
    "take_from_windows": _poolings("x", "places", more=MANY_WINDOWS),
    "place_in_windows": _poolings("y", "places", more=MANY_WINDOWS),
    "unfold_windows": _poolings("x"),
    "fold_windows": _poolings("elements"),
}
"""Maps an operation and the name of a case to a function that draws arguments, in float64."""
LAYOUTS = {
    "contiguous": np.ascontiguousarray,
    "fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "channels last": lambda x: as_last(x) if x.ndim in (3, 4) else x,
}
DTYPES = (np.float16, np.float32, np.float64)


def arguments(
    operation: str,
    name: str,
    dtype: type = np.float64,
    layout: str = "contiguous",
    send: Callable = lambda x: x,
) -> list:
    """Draws the arguments of a case.

    Args:
        operation, name: keys of :data:`CASES`.
        dtype: the dtype of floating-point arrays.
        layout: a key of :data:`LAYOUTS`.
        send: a function that moves arrays to a device.

    Example:
        >>> [x.shape for x in arguments("softmax_gradient", "matrix")[:2]]
        [(3, 5), (3, 5)]
    """

    def prepare(value):
        if not isinstance(value, np.ndarray):
            return value
        value = value.astype(dtype) if is_floating(value.dtype) else value
        return send(LAYOUTS[layout](value))

    return [prepare(value) for value in CASES[operation][name]()]
