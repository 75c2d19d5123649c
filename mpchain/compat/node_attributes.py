"""Computes the attributes of Chainer's functions that exporters read and that are not arguments."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.typing import Array


def _axes(axis):
    return axis if axis is None or isinstance(axis, tuple) else (axis,)


def _tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _size(i):
    return lambda f: f.outputs[0]().shape[2 + i]


def _spread(name):
    """Returns a function that returns an argument of a pooling or convolution as a tuple with one
    entry for each spatial axis."""

    def spread(f):
        value = f.__dict__[name]
        # Pooling accepts stride=None, which means ksize.
        value = f.__dict__["ksize"] if value is None else value
        n = len(f.inputs[0].shape) - 2
        return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n

    return spread


def _pad_widths(f):
    widths = np.asarray(f.pad_width)
    return np.repeat(widths, 2) if widths.size == 1 else widths


def _all_but_channels(f):
    axes = range(len(f.inputs[0].shape))
    return _axes(f.axis) if f.axis is not None else tuple([a for a in axes if a != 1])


def _sections(f):
    given = f.indices_or_sections
    return int(given) if np.ndim(given) == 0 else None


def _reshaped(f):
    return f.__dict__.get("shape") or f.outputs[0]().shape


def _state(f, name):
    node = f.__dict__.get("_node")
    return () if node is None else node.__dict__.get(name) or ()


def _kept(f, i):
    """Returns the i-th array that the node keeps for its derivative, or None."""
    kept = _state(f, "_kept")
    return kept[i] if i < len(kept) else None


def _softmax_of_loss(f):
    """Returns the probabilities that ``softmax_cross_entropy`` computed from its inputs."""
    parts = _kept(f, 1)
    return None if parts is None else parts[0] / parts[1]


def _flag(is_h):
    """Returns a function that computes a mask of the elements that zoneout takes from h or x."""

    def flag(f):
        taken = _kept(f, 0)
        return None if taken is None else taken if is_h else ~taken

    return flag


def _noise(f):
    """Returns the noise that ``gaussian`` drew, or got as an argument."""
    product = None if f.__dict__["_node"] is None else f.__dict__["_node"].inputs[1].creator_node
    kept = () if product is None else product.__dict__.get("_kept") or ()
    return kept[1] if len(kept) > 1 else f.__dict__.get("eps")


def _scaled_noise(f):
    eps, ln_var = _noise(f), f.inputs[-1].data
    return None if eps is None or ln_var is None else np.exp(ln_var * 0.5) * eps


def _statistics(i):
    """Returns a function that returns the mean (0) or the inverse standard deviation (1) of the
    batch that a normalization got."""

    def find(f):
        kept = getattr(f.__dict__["_node"], "_kept", None)
        values = kept and kept[-2]  # what a body returned besides its output
        return values[i].squeeze(f.axis) if values else None

    return find


def _variance(f):
    inv_std = f.__dict__["inv_std"]
    return None if inv_std is None else (1 / (inv_std * inv_std) - f.eps).astype(inv_std.dtype)


_REDUCED = {
    name: {"axis": lambda f: _axes(f.axis)}
    for name in ("Max", "Mean", "Min", "Prod", "Sum", "LogSumExp", "Squeeze", "NormalizeL2")
}
_POOLED = {name: _spread(name) for name in ("ksize", "stride", "pad")}
_CONVOLVED = {name: _spread(name) for name in ("stride", "pad", "dilate")}
_OUTPUT_SIZES: dict[str, Any] = {"outs": lambda f: f.outputs[0]().shape[2:]}
_OUTPUT_SIZE = {"outh": _size(0), "outw": _size(1)}

DERIVED: dict[str, dict[str, Callable[[Any], Any]]] = _REDUCED | {
    "AveragePooling2D": {"cover_all": lambda f: False},
    "AveragePoolingND": _POOLED | {"cover_all": lambda f: False},
    "BatchNormalization": {
        "axis": _all_but_channels,
        "mean": _statistics(0),
        "inv_std": _statistics(1),
        "var": _variance,
    },
    "BroadcastTo": {"_shape": lambda f: f.shape},
    "Cast": {"type": lambda f: f.typ},
    "ClippedReLU": {"cap": lambda f: f.z},
    "ConvolutionND": _CONVOLVED,
    "Deconvolution2DFunction": _OUTPUT_SIZE,
    "DeconvolutionND": _CONVOLVED | _OUTPUT_SIZES,
    "FixedBatchNormalization": {"axis": _all_but_channels},
    "Gaussian": {"eps": _noise, "noise": _scaled_noise},
    "GetItem": {"slices": lambda f: f.slices if isinstance(f.slices, tuple) else (f.slices,)},
    "Dropout": {"mask": lambda f: _kept(f, 1) if f.mask is None else f.mask},
    "MaxPoolingND": _POOLED | {"indexes": lambda f: _kept(f, 1)},
    "Moveaxis": {
        "source": lambda f: _tuple(f.source),
        "destination": lambda f: _tuple(f.destination),
    },
    "Pad": {"pad_bw": _pad_widths, "keywords": lambda f: f.keywords_of_call},
    "Repeat": {"repeats": lambda f: _tuple(f.repeats)},
    "Reshape": {"shape": _reshaped},
    "ResizeImages": {"out_H": lambda f: f.output_shape[0], "out_W": lambda f: f.output_shape[1]},
    "RReLU": {"r": lambda f: _kept(f, 1) if f.r is None else f.r},
    "SoftmaxCrossEntropy": {"y": _softmax_of_loss},
    "SplitAxis": {
        "sections": _sections,
        "indices": lambda f: None if _sections(f) is not None else f.indices_or_sections,
    },
    "Unpooling2D": _OUTPUT_SIZE,
    "UnpoolingND": _POOLED | _OUTPUT_SIZES,
    "Zoneout": {"flag_h": _flag(True), "flag_x": _flag(False)},
}
"""Maps a class and an attribute to a function that computes the attribute from a call's data."""


def complete(function: object) -> None:
    """Sets the derived attributes of a described function."""
    derived = DERIVED.get(type(function).__name__, {})
    for key, value in derived.items():
        function.__dict__[key] = value(function)


_RETAINED = {
    (0,): """
        Absolute Arccos Arcsin Arctan BatchDet BatchL2NormSquared CReLU Clip ClippedReLU Cos Cosh
        Cumprod DeCov DiGamma DivFromConstant EmbedIDFunction Erf Erfc Erfcx HardSigmoid LGamma
        LocalResponseNormalization Log Log10 Log1p Log2 LogNdtr LogSumExp Max Min Ndtr NormalizeL2
        PowVarConst Prod Repeat Sin Sinh Softplus SpatialTransformerGrid Square Tan Zeta""",
    (0, 1): """
        Arctan2 BatchMatMul BatchNormalization BinaryAccuracy ClassificationSummary
        Convolution2DFunction ConvolutionND CrossCovariance Deconvolution2DFunction DeconvolutionND
        Div EinSum Fmod GroupNormalization Hinge HuberLoss LSTM LayerNormalization LinearFunction
        LocalConvolution2DFunction MatMul Maximum MeanSquaredError Minimum Mul PReLUFunction
        PolyGamma PowVarVar R2_score SigmoidCrossEntropy SimplifiedDropconnect SoftmaxCrossEntropy
        SpatialTransformerSampler SquaredError Swish TensorDot""",
    (0, 1, 2): "BatchRenormalizationFunction Contrastive LinearInterpolate TreeLSTM Triplet",
    (0, 1, 2, 3): "ConnectionistTemporalClassification SLSTM",
    (0, 1, 2, 3, 4, 5): "BilinearFunction",
    (0, 1, 3, 4): "FixedBatchNormalization",
    (1,): "Gaussian ROIPooling2D SelectItem",
    (1, 2): "ROIAverageAlign2D",
}
"""Maps the indices of inputs that are kept for backward to the classes of Chainer that keep them.
Hooks in Chainer 7.8.1 found these indices."""

_KEPT = {name: indexes for indexes, names in _RETAINED.items() for name in names.split()}


def retained(name: str, in_data: Sequence[Array]) -> tuple[Any, ...]:
    """Returns a function's inputs as hooks get them in backward: None for inputs that are not kept.

    Example:
        >>> retained("Gaussian", ("mean", "ln_var"))
        (None, 'ln_var')
    """
    kept = _KEPT.get(name, ())
    return tuple([x if i in kept else None for i, x in enumerate(in_data)])


def keeps_inputs(name: str) -> bool:
    """Returns whether Chainer's function of this class keeps inputs for backward.

    Example:
        >>> keeps_inputs("Convolution2DFunction"), keeps_inputs("ReLU")
        (True, False)
    """
    return name in _KEPT
