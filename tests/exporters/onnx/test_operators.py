"""Tests operators that other programs write and mpchain does not, against onnxruntime."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable
from tests.exporters.onnx.runtime import run

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

X = np.random.RandomState(0).randn(2, 3, 5, 4).astype(np.float32)


def model_of(operator, inputs, n_outputs=1, **attributes):
    """Returns a model of one node, whose first input is not constant."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(n_outputs)]
    known = [
        onnx.numpy_helper.from_array(x, name)
        for x, name in zip(inputs[1:], names[1:])
        if x is not None
    ]
    kind = onnx.helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operator, names, outputs, **attributes)],
        "graph",
        [onnx.helper.make_tensor_value_info("x0", kind, inputs[0].shape)],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        known,
    )
    version = onnx.helper.make_opsetid("", 21)
    return onnx.helper.make_model(graph, opset_imports=[version], ir_version=10)


def check(made, x):
    expected = run(made, {"x0": x})
    results = mpchain.onnx.ONNXModel(made)(x)
    results = results if isinstance(results, tuple) else (results,)
    for y, z in zip(results, expected, strict=True):
        y = y.array if isinstance(y, Variable) else y
        np.testing.assert_allclose(y, z, 1e-5, 1e-5)
        assert (y.shape, y.dtype) == (z.shape, z.dtype)


WHERE = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SIZES = {"larger": [2, 3, 8, 9], "smaller": [2, 3, 2, 3], "mixed": [2, 3, 1, 7]}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_to_sizes(mode, where, sizes):
    inputs = [X, None, None, np.array(SIZES[sizes])]
    check(model_of("Resize", inputs, mode=mode, coordinate_transformation_mode=where), X)


@pytest.mark.parametrize("nearest_mode", NEAREST)
@pytest.mark.parametrize("where", WHERE)
def test_resize_to_the_nearest(nearest_mode, where):
    options = {"nearest_mode": nearest_mode, "coordinate_transformation_mode": where}
    check(model_of("Resize", [X, None, None, np.array([2, 3, 7, 6])], mode="nearest", **options), X)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 1.7], [1, 1, 0.6, 3]])
def test_resize_by_scales(mode, scales):
    inputs = [X, None, np.array(scales, np.float32)]
    check(model_of("Resize", inputs, mode=mode), X)
    inputs[2] = inputs[2][2:]
    check(model_of("Resize", inputs, mode=mode, axes=[2, 3]), X)


def test_resize_excluding_what_is_outside():
    options = {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}
    check(model_of("Resize", [X, None, None, np.array([2, 3, 9, 7])], **options), X)


def test_resize_has_gradients_and_is_exported_again():
    made = model_of("Resize", [X, None, None, np.array([2, 3, 9, 7])], mode="linear")
    read, x = mpchain.onnx.ONNXModel(made), Variable(X)
    F.sum(read(x)).backward()
    np.testing.assert_allclose(x.grad.sum(), 2 * 3 * 9 * 7, 1e-5)
    again = mpchain.onnx.export(read, X, batch_axis=None)
    (z,) = run(again, {again.graph.input[0].name: X})
    np.testing.assert_allclose(z, read(X).array, 1e-5, 1e-6)


@pytest.mark.parametrize(
    "options", [{"coordinate_transformation_mode": "tf_crop_and_resize"}, {"antialias": 1}]
)
def test_resize_that_is_not_supported(options):
    read = mpchain.onnx.ONNXModel(
        model_of("Resize", [X, None, None, np.array([2, 3, 2, 2])], mode="linear", **options)
    )
    with pytest.raises(NotImplementedError, match=f"Resize with .*{next(iter(options.values()))}"):
        read(X)


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 2, -1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_of_extremes(operator, axis, keepdims, last):
    x = np.random.RandomState(1).randint(0, 3, (4, 3, 5)).astype(np.float32)
    options = {"axis": axis, "keepdims": keepdims, "select_last_index": last}
    check(model_of(operator, [x], **options), x)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [1, -1])
def test_topk(dtype, largest, axis):
    x = np.random.RandomState(1).permutation(60).reshape(4, 3, 5).astype(dtype)
    check(model_of("TopK", [x, np.array([2])], 2, axis=axis, largest=largest), x)


# Export of positions that models compute.


class Choice(mpchain.Chain):
    """Selects the rows of the words with the highest scores."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.score = L.Linear(4, 7)
            self.words = L.EmbedID(7, 3)

    def forward(self, x):
        best = F.argmax(self.score(F.relu(x)), axis=1)
        return self.words(best), best


def exported(model, x, **options):
    """Checks a model for several batch sizes; returns the types of its operators."""
    with mpchain.using_config("train", False):
        made = mpchain.onnx.export(model, x, **options)
    onnx.checker.check_model(made, full_check=True)
    name = made.graph.input[0].name
    for batch in (x, x[:1], np.concatenate([x, -x[:3]])):
        for y, z in zip(model(batch), run(made, {name: batch}), strict=True):
            np.testing.assert_allclose(z, y.array, 1e-5, 1e-5)
            assert (z.shape, z.dtype) == (y.shape, y.dtype)
        back = mpchain.onnx.ONNXModel(made)(batch)
        for y, z in zip(model(batch), back, strict=True):
            np.testing.assert_allclose(mpchain.as_array(z), y.array, 1e-5, 1e-5)
    return {node.op_type for node in made.graph.node}


ROWS = np.random.RandomState(0).randn(5, 4).astype(np.float32)


def test_argmax_chooses_rows():
    assert {"ArgMax", "Gather"} <= exported(Choice(), ROWS)


@pytest.mark.parametrize("function", [F.argmax, F.argmin])
def test_argmax_over_all_elements(function):
    def model(x):
        return function(x * 2), F.sum(x)

    made = mpchain.onnx.export(model, ROWS, batch_axis=None)
    place, _ = run(made, {"x": ROWS})
    assert (place, place.dtype, place.shape) == (function(ROWS).array, np.int32, ())


def test_the_most_likely_and_their_places():
    def model(x):
        values, places = F.topk(F.softmax(x), 3)
        order = F.sort(x * x, axis=1, descending=True)[1]
        return values, Variable(places), Variable(order), F.sort(x, 1)[0]

    assert {"TopK", "GatherElements"} <= exported(model, ROWS)


def test_sorting_over_the_batch():
    def model(x):
        y, places = F.sort(x, axis=0)
        return y * 1, Variable(places)

    exported(model, ROWS)


def test_positions_in_constants_are_constants():
    table = np.arange(3.0, dtype=np.float32)[None]

    def model(x):
        return x[:, :3] * F.sort(table, 1, descending=True)[0], F.relu(x) * float(
            F.argmax(table).array
        )

    assert "TopK" not in exported(model, ROWS)
