"""Rules that map PyTorch's tensors to the parameters of a link: one rule for each kind of link.

A rule returns a dict. The keys are PyTorch's names, relative to the link. A value is a parameter or
array if its layout in PyTorch is the same, a :class:`Tensor` if its layout differs, a child link,
which has its own rule, or None if the link lacks this tensor. Links without a rule, such as
users' chains, keep their own names.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mpchain import links as L
from mpchain.link import Link, Sequential
from mpchain.parameter_tree import is_array
from mpchain.typing import Array
from mpchain.variable import Parameter


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A PyTorch tensor that mpchain stores differently.

        >>> bias = np.zeros(2, np.float32)
        >>> Tensor([bias, bias[::-1]]).shape
        (4,)

    Attributes:
        parts: the parameters or arrays (views included) that the tensor joins along its first axis.
        is_transposed: whether PyTorch's (or Hugging Face's) matrix is transposed.
        is_added: whether the tensor's values are added to those of another tensor, because PyTorch
            has two biases where mpchain has one. Such a tensor is saved as zeros.
        value: the value to save for a tensor without a counterpart in mpchain; None saves no
            tensor. Such a tensor may be missing in files, and is not read.
    """

    parts: Sequence[Parameter | Array] = ()
    is_transposed: bool = False
    is_added: bool = False
    value: Array | None = None

    @property
    def arrays(self) -> list[Array]:
        """The arrays of :attr:`parts`."""
        return [part.array if isinstance(part, Parameter) else part for part in self.parts]

    @property
    def is_initialized(self) -> bool:
        """Whether all parts have arrays."""
        return all(array is not None for array in self.arrays)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of PyTorch's tensor."""
        first = self.arrays[0].shape
        shape = (sum(array.shape[0] for array in self.arrays), *first[1:]) if first else first
        return shape[::-1] if self.is_transposed else shape


Rule = Callable[[Any], Mapping[str, Any]]
_RULES: dict[type, Rule] = {}


def rule(*kinds: type) -> Callable[[Rule], Rule]:
    """Decorator: makes a function the rule for links of these classes; see the module's docstring.

    Example:
        >>> class Affine(mpchain.Link):
        ...     def __init__(self):
        ...         super().__init__(scale=(2,), shift=(2,))
        >>> @mpchain.interop.rule(Affine)
        ... def _(link):
        ...     return {"weight": link.scale, "bias": link.shift}
        >>> sorted(mpchain.interop.state_dict(Affine()))
        ['bias', 'weight']
    """

    def register(function):
        _RULES.update({kind: function for kind in kinds})
        return function

    return register


def tensors_of(link: Link, prefix: str = "") -> Iterator[tuple[str, Tensor, Link]]:
    """Yields PyTorch's name, the :class:`Tensor`, and its link, for all tensors of a link and its
    descendants.

    Raises:
        NotImplementedError: a link has no counterpart in PyTorch.
        ValueError: a link has uninitialized parameters.

    Example:
        >>> [name for name, *_ in tensors_of(mpchain.Chain(l1=L.Linear(3, 2)))]
        ['l1.weight', 'l1.bias']
    """
    kind = next(cls for cls in type(link).__mro__ if cls in _RULES)
    if kind is Link and link._params and type(link).__module__.startswith("mpchain.links"):
        raise _no_counterpart(link, prefix)
    try:
        found = _RULES[kind](link)
    except NotImplementedError as error:
        raise _no_counterpart(link, prefix, f": {error}") from None
    for name, value in found.items():
        if isinstance(value, Link):
            yield from tensors_of(value, f"{prefix}{name}.")
        elif value is not None:
            tensor = value if isinstance(value, Tensor) else Tensor([value])
            yield prefix + name, tensor, link


def _no_counterpart(link, prefix, reason=" that mpchain knows; mpchain.interop.rule adds one"):
    return NotImplementedError(
        f"interop: {type(link).__name__} at /{prefix.rstrip('.').replace('.', '/')} has no "
        f"counterpart in PyTorch{reason}"
    )


@rule(Link)
def _own_names(link):
    values = {name: vars(link)[name] for name in sorted(link._params | link._persistents)}
    own = {k: v for k, v in values.items() if isinstance(v, Parameter) or is_array(v)}
    return own | dict(link._named_children())


@rule(Sequential)
def _positions(link):
    """Returns the links by their positions among all layers, because PyTorch also counts layers
    without parameters."""
    return {str(i): layer for i, layer in enumerate(link) if isinstance(layer, Link)}


@rule(L.Linear, L.ConvolutionND, L.DeconvolutionND)
def _product(link):
    return {"weight": link.W, "bias": link.b}


@rule(L.DepthwiseConvolution2D)
def _depthwise(link):
    """Maps PyTorch's names to the tensors of a convolution that has a group for each channel."""
    W = _of(link, link.W)
    return {"weight": Tensor([W[:, i : i + 1] for i in range(W.shape[1])]), "bias": link.b}


@rule(L.EmbedID)
def _table(link):
    return {"weight": link.W}


@rule(L.PReLU)
def _slopes(link):
    return {"weight": _of(link, link.W).reshape(-1)}


@rule(L.BatchNormalization)
def _batch_normalization(link):
    averages = [_of(link, x) for x in (link.avg_mean, link.avg_var)]
    return {
        "weight": link.gamma,
        "bias": link.beta,
        **dict(zip(("running_mean", "running_var"), averages)),
        "num_batches_tracked": Tensor(value=np.array(0)),
    }


@rule(L.LayerNormalization, L.GroupNormalization, L.InstanceNormalization)
def _sample_normalization(link):
    return {"weight": link.gamma, "bias": link.beta}


@rule(L.RMSNormalization)
def _rms_normalization(link):
    return {"weight": link.gamma}


@rule(*(getattr(L, f"NStep{way}{cell}") for way in ("", "Bi") for cell in ("LSTM", "GRU")))
@rule(*(getattr(L, f"NStep{way}RNN{f}") for way in ("", "Bi") for f in ("Tanh", "ReLU")))
def _layers(link):
    """Joins the weights of the gates, which are in PyTorch's order, but in one array per gate."""
    found = {}
    for i, layer in enumerate(link):
        k, is_backwards = divmod(i, link.direction)
        n = link.n_weights // 2
        for kind, own in ("weight", "w"), ("bias", "b"):
            for side, numbers in ("ih", range(n)), ("hh", range(n, 2 * n)):
                name = f"{kind}_{side}_l{k}" + "_reverse" * is_backwards
                found[name] = Tensor([_of(link, vars(layer)[f"{own}{j}"]) for j in numbers])
    return found


@rule(L.StatelessLSTM, L.LSTM)
def _lstm_cell(link):
    """Reorders the gates: mpchain stores a unit's gates side by side (a, i, f, o), and PyTorch
    stores each gate of all units as a block (i, f, a, o)."""

    def gates(param):
        array = _of(link, param)
        return [array[k::4] for k in (1, 2, 0, 3)]

    bias = gates(link.upward.b)
    return {
        "weight_ih": Tensor(gates(link.upward.W)),
        "weight_hh": Tensor(gates(link.lateral.W)),
        "bias_ih": Tensor(bias),
        "bias_hh": Tensor(bias, is_added=True),
    }


@rule(L.StatelessGRU, L.StatefulGRU, L.GRU)
def _gru_cell(link):
    raise NotImplementedError(
        "PyTorch's GRU applies the reset gate after the product of weights and state, not "
        "before; L.NStepGRU does so too"
    )


@rule(L.MultiHeadAttention)
def _attention(link):
    projections = [link.query, link.key, link.value]
    if len({_of(p, p.W).shape for p in projections}) == 1:
        weights = {"in_proj_weight": Tensor([p.W for p in projections])}
    else:
        weights = {f"{p.name[0]}_proj_weight": p.W for p in projections}
    biases = [p.b for p in projections if p.b is not None]
    return weights | {"in_proj_bias": Tensor(biases) if biases else None, "out_proj": link.out}


@rule(L.TransformerEncoderLayer)
def _encoder_layer(link):
    return {"self_attn": link.attention, **_pick(link, "linear1 linear2 norm1 norm2")}


@rule(L.TransformerDecoderLayer)
def _decoder_layer(link):
    attentions = {"self_attn": link.self_attention, "multihead_attn": link.source_attention}
    return attentions | _pick(link, "linear1 linear2 norm1 norm2 norm3")


def _pick(link, names):
    return {name: getattr(link, name) for name in names.split()}


@rule(L.VGGLayers)
def _vgg(link):
    """Maps the names in torchvision's ``vgg16`` and ``vgg19`` to the links."""
    found, at = {}, 0
    for name, functions in link.functions.items():
        if name.startswith("conv"):
            found[f"features.{at}"] = functions[0]
        at += len(functions)
    return found | {"classifier.0": link.fc6, "classifier.3": link.fc7, "classifier.6": link.fc8}


def _of(link, value):
    """Returns the array of a parameter or persistent value."""
    array = value.array if isinstance(value, Parameter) else value
    if array is None:
        raise ValueError(
            f"interop: {type(link).__name__} has no arrays yet: give the size of its input when it "
            "is made, or call it once"
        )
    return array
