"""Tests that declared functions exported to ONNX compute the same in onnxruntime and in the link
that reads the model as in mpchain, or are refused with a reason."""

import importlib
import pathlib

import numpy as np
import pytest

import mpchain
from mpchain import Variable
from mpchain.exporters.onnx.conversion import CONVERTERS
from mpchain.exporters.onnx.formulas import _COMPOSED, _OPERATORS
from mpchain.exporters.onnx.functions import EXPANDED
from mpchain.formulas.operators import OPERATORS
from mpchain.functions.declaring.declaration import registry
from mpchain.kernels.window import Window
from tests.exporters.onnx.runtime import run
from tests.functions.table import Row, inputs_of

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def _rows():
    """Yields the rows of all tables of functions; only the first row of a declared function is not
    slow."""
    folder = pathlib.Path(__file__).parents[2] / "functions"
    for path in sorted(folder.glob("test_*.py")):
        module, names = importlib.import_module(f"tests.functions.{path.stem}"), set()
        for table in [x for x in vars(module).values() if isinstance(x, list)]:
            for case in [x for x in table if isinstance(x, Row)]:
                first = case.name.split()[0]
                is_first = first in registry and first not in names
                marks = [] if is_first else [pytest.mark.slow]
                names.add(first)
                name = f"{path.stem.removeprefix('test_')}-{case.name}"
                yield pytest.param(case, id=name.replace(" ", "_"), marks=marks)


ROWS = list(_rows())
_OUTSIDE = "depends on the values of the inputs or on random numbers"
_MATRICES = "ONNX has no decomposition or inverse of matrices"
_SPECIAL = "ONNX has no such function"
# For each function or row that cannot be exported, the reason; None for a row that can. A key is
# the first word of a row, or its whole name.
REFUSED = {
    "embedding_loss": {"black_out": _OUTSIDE},
    "image": {
        "spatial_transformer_sampler": _OUTSIDE,
        "spatial_transformer_sampler of a fixed grid": None,
    },
    "linear_algebra": dict.fromkeys(["inv", "batch_inv", "cholesky"], _MATRICES),
    "normalization": {
        "batch_renormalization": _OUTSIDE,
        "decorrelated_batch_normalization": _MATRICES,
    },
    "pooling": {
        "upsampling_2d": "the places of the maxima in their windows are computed outside",
        **dict.fromkeys(["adaptive_max_pooling_2d", "adaptive_max_pooling_nd"], _OUTSIDE),
    },
    "rearrangement": dict.fromkeys(
        ["pad_sequence length", "transpose_sequence empty ones"], r"of shape \(0,\) is empty"
    ),
    "roi": dict.fromkeys(["roi_pooling_2d", "roi_max_pooling_2d", "roi_max_align_2d"], _OUTSIDE),
    "sequence_loss": {"ctc": "its recursion over time is computed outside of the graph"},
    "special": dict.fromkeys(
        "erfcx erfinv erfcinv ndtri log_ndtr lgamma digamma polygamma zeta".split(), _SPECIAL
    ),
}
NOT_RUN = {"rearrangement-repeat_none"}
"""Rows that onnxruntime cannot run, because it does not broadcast to an axis without elements."""


def _reason(id, case):
    refused = REFUSED.get(id.partition("-")[0], {})
    return refused.get(case.name, refused.get(case.name.split()[0]))


EXPORTED = [p for p in ROWS if not _reason(p.id, *p.values) and p.id not in NOT_RUN]


@pytest.mark.parametrize("case", EXPORTED)
def test_row(case):
    arrays = [np.asarray(x) for x in inputs_of(case, np.float32)]
    names = [f"x{i}" for i in range(len(arrays))]
    with mpchain.using_config("train", False):
        ys = case.function(*map(Variable, arrays))
    ys = ys if isinstance(ys, (tuple, list)) else (ys,)
    made = mpchain.onnx.export(case.function, arrays, input_names=names, batch_axis=None)
    back = mpchain.onnx.ONNXModel(made)(*arrays)
    back = back if isinstance(back, tuple) else (back,)
    for y, z, b in zip(ys, run(made, dict(zip(names, arrays))), back, strict=True):
        finite = y.array[np.isfinite(y.array)]
        scale = float(abs(finite).max(initial=1))
        np.testing.assert_allclose(z, y.array, 2e-5, 2e-6 * scale)
        np.testing.assert_allclose(b.array, y.array, 2e-5, 2e-6 * scale)
        assert z.shape == y.shape and z.dtype == y.dtype


_PLACES = np.array([2, 0, 2])
_WINDOW = Window((2, 2), (1, 2), (1, 0), (1, 1), 1, (4, 5), (5, 2))
_MATRICES_OF_BOXES = [np.random.RandomState(k).rand(3, 2, n) for k, n in enumerate((4, 5))]
# No row applies these declared functions: they are gradients, or run only inside of other
# functions.
INNER = {
    "add_rows": ([(3, 4)], [_PLACES, 4]),
    "bell": ([(3, 4)], [-1.0]),
    "cast": ([(3, 4)], [np.dtype(np.float64)]),
    "cumsum": ([(3, 4)], [True]),
    "cut_sequences": ([(3, 5, 2)], [(5, 3, 2)]),
    "fold_windows": ([(2, 3, 4, 5, 2)], [_WINDOW]),
    "join_gates": ([(2, 4), (2, 4), (2, 4)], [True]),
    "log_add": ([(3, 4), (3, 4), (3, 1)], []),
    "neighbors": ([(2, 5, 3)], [2]),
    "place": ([(3,)], [(np.array([0, 1, 2]), _PLACES), (3, 4)]),
    "put_along": ([(2, 3)], [np.array([[0, 4, 2], [1, 3, 0]]), 1, (2, 5)]),
    "products_of_rows": ([(4, 3), (5, 3)], [np.array([0, 3]), np.array([4, 1])]),
    "scatter_item": ([(2, 4)], [slice(1, 3), (5, 4)]),
    "spread_boxes": ([(3, 2, 2, 2)], [*_MATRICES_OF_BOXES, np.array([1, 0, 1]), (2, 2, 4, 5)]),
    "unfold_windows": ([(2, 3, 4, 5)], [_WINDOW]),
    "spread_windows": ([(2, 3, 5, 2)], [_WINDOW]),
}


@pytest.mark.parametrize("name", INNER)
def test_inner_function(name):
    shapes, constants = INNER[name]
    declaration, random = registry[name], np.random.RandomState(0)
    arrays = [random.randn(*shape).astype(np.float32) for shape in shapes]

    def model(*xs):
        y = declaration.apply(xs, constants)
        return y if isinstance(y, tuple) else (y,)

    made = mpchain.onnx.export(model, arrays, batch_axis=None)
    names = [x.name for x in made.graph.input]
    for y, z in zip(model(*arrays), run(made, dict(zip(names, arrays))), strict=True):
        np.testing.assert_allclose(z, y.array, 1e-5, 1e-5)
        assert z.shape == y.shape and z.dtype == y.dtype
    if name == "cumsum":
        back = mpchain.onnx.ONNXModel(made)(*arrays)
        np.testing.assert_allclose(back.array, model(*arrays)[0].array, 1e-5, 1e-5)


REFUSING = [(p.id, *p.values) for p in ROWS if _reason(p.id, *p.values)]


@pytest.mark.parametrize("id, case", REFUSING, ids=[id for id, _ in REFUSING])
def test_what_cannot_be_exported_says_why(id, case):
    arrays = [np.asarray(x) for x in inputs_of(case, np.float32)]
    names = [f"x{i}" for i in range(len(arrays))]
    with pytest.raises((NotImplementedError, ValueError), match=_reason(id, case)):
        mpchain.onnx.export(case.function, arrays, input_names=names, batch_axis=None)


def test_the_list_of_declared_functions_that_cannot_be_exported_is_current():
    own = {k: d for k, d in registry.items() if d.body.__module__.startswith("mpchain.functions.")}
    known = CONVERTERS.keys() | EXPANDED.keys()
    formulas = {name for name, d in own.items() if d.is_elementwise}
    refused = set(mpchain.onnx.not_expressible())
    assert not refused & known and not known - own.keys() and not refused - own.keys()
    rest = own.keys() - known - formulas - refused
    assert not rest, "these need a converter, or a reason in NOT_EXPRESSIBLE"
    assert len(refused) == 18


def test_every_operator_of_formulas_has_nodes():
    own = {f for f in OPERATORS if f.__module__.partition(".")[0] in ("numpy", "mpchain")}
    own |= {f for f in OPERATORS if isinstance(f, np.ufunc)}
    assert not _OPERATORS.keys() & _COMPOSED.keys()
    assert own == _OPERATORS.keys() | _COMPOSED.keys(), "an operator needs a row here, too"
