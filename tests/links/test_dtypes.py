"""Tests the dtypes of parameters, persistent arrays and outputs of links, against Chainer 7.8.1.

For the policies float32, float16 and mixed16, a record has the dtypes of the parameters (and
persistent arrays) of a new link, and the dtypes of its outputs for float16, float32 and float64
inputs; ``--`` means that the call is refused, and ``..`` that there is no parameter.
"""

import re
import string

import numpy as np
import pytest

import mpchain
from mpchain import Variable, links
from mpchain import functions as F
from mpchain.distributed.gradients.persistents import named_persistents
from mpchain.utils.type_check import InvalidType
from tests.links.table import flatten
from tests.oracle.link_cases import CASES
from tests.oracle.link_cases.case import Case

pytestmark = pytest.mark.slow

SAME = "f4 -- f4 -- | f2 f2 -- -- | f2 f2 -- --"
ANY = "f4 f2 f4 f8 | f2 f2 f4 f8 | f2 f2 f4 f8"
STATISTICS = "f4/f4 f2 f4 f8 | f2/f2 f2 f4 f8 | f4/f4 f2 f4 f8"

# Chainer 7.8.1 produced these records on a CPU; a name is the beginning of a case of tests.oracle.
CHAINER = {
    SAME: """
        Bias(1, (3,))  Scale(1, (3,))  Linear(3, 2)  Convolution2D(3, 4, 3, stride=2
        Deconvolution2D(3, 4, 3, stride=2  DepthwiseConvolution2D(3, 2, 3, stride=2
        DilatedConvolution2D(3, 4, 3, stride=2  DeformableConvolution2D(3, 4, 3, pad=1)
        LocalConvolution2D(3, 4, (6, 5), 3)  MLPConvolution2D(3, (4, 5), 3  Highway(3)
        Inception(3, 2, 3, 4, 2, 3, 5)  Maxout(3, 2, 4)  PReLU()  Swish(())
        SimplifiedDropconnect(3, 2)  Classifier(L.Linear(3, 2))  BinaryHierarchicalSoftmax(3
        NegativeSampling(3  CRF1d(3)  LayerNormalization(4)  LSTM(3, 4)  StatelessLSTM(3, 4)
        GRU(3, 4)  StatefulGRU(3, 4)  StatelessGRU(3, 4)  StatefulMGU(3, 4)  StatelessMGU(3, 4)
        StatefulPeepholeLSTM(3, 4)  StatefulZoneoutLSTM(3, 4)  ChildSumTreeLSTM(3, 4)
        NaryTreeLSTM(3, 4)  NStepLSTM(2  NStepBiLSTM(2  NStepGRU(2  NStepBiGRU(2  NStepRNNTanh(2
        NStepBiRNNTanh(2  NStepRNNReLU(2  NStepBiRNNReLU(2""",
    ANY: """
        Linear(None, 2, nobias=True)  Convolution1D(3, 4, 3, stride=2
        Deconvolution1D(3, 4, 3, stride=2  Convolution2D(None, 4, 2, nobias=True
        Deconvolution2D(None, 4, 2, nobias=True  Convolution3D(3, 4, 3, stride=2
        Deconvolution3D(3, 4, 3, stride=2  ConvolutionND(2  DeconvolutionND(2
        DepthwiseConvolution2D(None  DilatedConvolution2D(None  LocalConvolution2D(None
        Highway(3, nobias=True  Maxout(3, 2, 4, initialW  SimplifiedDropconnect(None""",
    STATISTICS: "BatchNormalization(3)  BatchRenormalization(3)",
    "../f4 f2 f4 f8 | ../f2 f2 f4 f8 | ../f4 f2 f4 f8": "BatchRenormalization((3, 2)",
    "../f4 -- f4 f8 | ../f4 -- f4 f8 | ../f4 -- f4 f8": """
        DecorrelatedBatchNormalization(4, groups=2)""",
    "../f4 -- f4 -- | ../f4 -- f4 -- | ../f4 -- f4 --": """
        DecorrelatedBatchNormalization(4, groups=1)""",
    "f4 f2 f4 f8 | f2 f2 f4 f8 | f4 f2 f4 f8": "GroupNormalization(2, 4)",
    "f4/f4 f2 f4 f8 | f2/f2 f2 f4 f8 | f2/f2 f2 f4 f8": "InceptionBN(3, 2, 3, 4, 2, 3, 'avg', 5)",
    "f4 -- f4 -- | f2 -- -- -- | f2 -- -- --": "Bilinear(2, 3, 4)",
    "f4 f4 f4 f8 | f2 f2 f4 f8 | f2 f2 f4 f8": """
        DeformableConvolution2D(3, 4, 3, offset_nobias=True  BlackOut(3""",
    "f4 f4 f4 f4 | f2 f2 f2 f2 | f2 f2 f2 f2": "EmbedID(4, 3)",
    "f4 f4 f4 f4 | f4 f4 f4 f4 | f4 f4 f4 f4": "Parameter(",
    ".. f2 f4 f8 | .. f2 f4 f8 | .. f2 f4 f8": "Bias(0)  Scale(0)",
}

OURS = {
    "InstanceNormalization(3)": "f4 f2 f4 -- | f2 f2 -- -- | f4 f2 f4 --",
    # A running variance in float16 could overflow where float32 activations do not.
    "InceptionBN(3, 2, 3, 4, 2, 3, 'avg', 5)": (
        "f4/f4 f2 f4 -- | f2/f2 f2 -- -- | f2,f4/f4 f2 -- --"
    ),
    "Parameter(": "f4 f4 f4 f4 | f4 f4 f4 f4 | f4 f4 f4 f4",
    "EmbedID(4, 3)": "f4 f4 f4 f4 | f2 f2 f2 f2 | f2 f2 f2 f2",
    "DecorrelatedBatchNormalization(4, groups=1)": (
        "../f4 f2 f4 -- | ../f4 f2 f4 -- | ../f4 f2 f4 --"
    ),
    # In training, the outputs do not depend on the persistent statistics.
    "DecorrelatedBatchNormalization(4, groups=2)": (
        "../f4 f2 f4 f8 | ../f4 f2 f4 f8 | ../f4 f2 f4 f8"
    ),
    # Losses have the dtype of their parameters.
    **dict.fromkeys(
        ["BinaryHierarchicalSoftmax(3", "NegativeSampling(3", "CRF1d(3)", "BlackOut(3"],
        "f4 f4 f4 -- | f2 f2 -- -- | f2 f2 -- --",
    ),
}
"""mpchain's records that do not follow from Chainer's by ``_by_the_rule``."""

CHAINER_ADDS = {"DeformableConvolution2D(3, 4, 3, offset_nobias=True"}
"""Cases in which Chainer's output is wider than a float16 input, but mpchain's is not."""

ONLY_OURS = [
    Case("L.InstanceNormalization(3)", "link(x)", {"x": (2, 3, 4)}),
    Case("L.RMSNormalization(3)", "link(x)", {"x": (2, 3)}),
    Case("L.MultiHeadAttention(4, 2)", "link(x)", {"x": (2, 3, 4)}),
    Case("L.TransformerEncoderLayer(4, 2)", "link(x)", {"x": (2, 3, 4)}),
    Case("L.TransformerDecoderLayer(4, 2)", "link(x, y)", {"x": (2, 3, 4), "y": (2, 2, 4)}),
    Case("L.LoRA(L.Linear(3, 2), 2)", "link(x)", {"x": (4, 3)}),
    Case("L.ExponentialMovingAverage(L.Linear(3, 2))", "link(x)", {"x": (4, 3)}),
]
POLICIES = {"f4": np.dtype("f4"), "f2": np.dtype("f2"), "mixed16": mpchain.mixed16}
WIDTHS = ["f2", "f4", "f8"]


def _names(text):
    return re.split(r"\s{2,}", text.strip())


def _case(name):
    return next(case for case in CASES if case.make.startswith(f"L.{name}"))


def _by_the_rule(record):
    """Returns the outputs' dtypes by mpchain's rule: the input's dtype, which must not be wider
    than the parameters'."""
    made, *_ = record.split()
    dtypes = [d for d in re.split("[,/]", made) if d != ".."]
    narrowest = min(map(WIDTHS.index, dtypes), default=2)
    return [made, *(x if i <= narrowest else "--" for i, x in enumerate(WIDTHS))]


def _short(dtypes):
    return ",".join(sorted({np.dtype(d).str[1:] for d in dtypes})) or ".."


def _made(case, policy):
    np.random.seed(0)
    with mpchain.using_config("dtype", policy):
        return eval(case.make, {"L": links, "F": F, "np": np})


def _called(case, policy, width):
    """Makes and calls the link under the policy; returns (dtypes of the link, dtypes of outputs) as
    in a record."""
    with mpchain.using_config("dtype", policy):
        link = _made(case, policy)
        scope = {
            n: Variable(x.astype(width)) if x.dtype.kind == "f" else x
            for n, x in case.draw().items()
        }
        names = {**scope, "link": link, "F": F, "np": np}
        with mpchain.using_config("train", case.config.get("train", True)):
            try:
                ys = flatten(eval(case.call, names))
            except InvalidType as error:
                assert "must not have a wider dtype than" in str(error)
                return _record_of(link), "--"
    ys = [y for y in ys if y.dtype.kind == "f"]
    _check_gradients(link, ys, scope)
    return _record_of(link), _short(y.dtype for y in ys)


def _record_of(link):
    arrays = [each.value for each in named_persistents(link).values()]
    arrays = [a.dtype for a in arrays if getattr(a, "dtype", np.dtype(bool)).kind == "f"]
    made = _short(p.dtype for p in link.params())
    return f"{made}/{_short(arrays)}" if arrays else made


def _check_gradients(link, ys, scope):
    link.cleargrads()
    ys = [y for y in ys if isinstance(y, Variable) and y.requires_grad]
    for y in ys:
        y.grad = np.ones(y.shape, y.dtype)
    if ys:
        mpchain.backward(ys)
    variables = [*link.params(), *(x for x in scope.values() if isinstance(x, Variable))]
    assert all(v.grad is None or v.grad.dtype == v.dtype for v in variables)
    assert all(v.grad is None or np.isfinite(v.grad).all() for v in variables)


@pytest.mark.parametrize("name", [name for text in CHAINER.values() for name in _names(text)])
def test_as_in_chainer(name):
    (record,) = [r for r, text in CHAINER.items() if name in _names(text)]
    own = OURS.get(name, record).split(" | ")
    for policy, theirs, ours in zip(POLICIES.values(), record.split(" | "), own, strict=True):
        made, *outputs = ours.split() if name in OURS else _by_the_rule(ours)
        for width, y, expected in zip(WIDTHS, theirs.split()[1:], outputs, strict=True):
            assert _called(_case(name), policy, width) == (made, expected), (policy, width)
            if "--" not in (y, expected) and name not in CHAINER_ADDS:
                assert y == expected


@pytest.mark.parametrize("case", ONLY_OURS, ids=lambda case: case.make)
def test_links_that_chainer_lacks(case):
    records = OURS.get(case.make.removeprefix("L."), SAME).split(" | ")
    for policy, record in zip(POLICIES.values(), records, strict=True):
        made, *outputs = _by_the_rule(record)
        for width, expected in zip(WIDTHS, outputs, strict=True):
            assert _called(case, policy, width) == (made, expected), (policy, width)


def test_every_link_has_a_record():
    text = " ".join([*(case.make for case in ONLY_OURS), *CHAINER.values()])
    known = set(re.findall(r"\w+", text))
    layers = {n for n in vars(links) if n[0] in string.ascii_uppercase} - known
    assert layers <= {"Dropout", "GoogLeNet", "ResNetLayers", "VGGLayers"} | {
        f"{name}Layers" for name in ("ResNet50", "ResNet101", "ResNet152", "VGG16", "VGG19")
    }


@pytest.mark.slow
def test_a_model_of_mixed_precision_stays_in_half_precision():
    with mpchain.using_config("dtype", mpchain.mixed16):
        model = links.ResNetLayers(None, 50)
    x = np.random.RandomState(0).randn(1, 3, 32, 32).astype(np.float16)
    ys = model(x, layers=["conv1", "res5"])
    assert {y.dtype for y in ys.values()} == {x.dtype}
    for path, param in model.namedparams():
        assert param.dtype == (np.float32 if path.endswith(("gamma", "beta")) else np.float16)
