"""Tests which arrays each declared function keeps for its derivatives: the memory of a training
step."""

import inspect

import numpy as np
import pytest

import mpchain.distributed.functions
import mpchain.distributions  # noqa: F401 these two declare functions, too
import mpchain.functions as F
from mpchain import Variable
from mpchain.functions.declaring.declaration import Application, registry

# Arrays have the names of the declaration's parameters; `y` or `ys` is the output, and `aux` is an
# additional result of the body.
KEPT = {
    "relu": "y",
    "leaky_relu": "x",
    "sigmoid": "y",
    "tanh": "y",
    "softplus": "x",
    "softmax": "y",
    "scaled_softmax": "y",
    "add_dropped": "",
    "without_later": "",
    "add_and_order": "",
    "with_contiguous_gradient": "",
    "fused_attention": "query key value aux y",
    "log_softmax": "y",
    "add": "",
    "subtract": "",
    "multiply": "x0 x1",
    "divide": "x1 y",
    "power": "x0 x1 y",
    "negative": "",
    "add_constant": "",
    "subtract_from_constant": "",
    "multiply_by_constant": "",
    "divide_by_constant": "",
    "divide_constant": "x y",
    "power_of_constant_exponent": "x",
    "power_of_constant_base": "y",
    "absolute": "x",
    "cast": "",
    "reshape": "",
    "transpose": "",
    "broadcast_to": "",
    "sum_to": "",
    "sum": "",
    "mean": "",
    "scatter_item": "",
    "get_item": "",
    "split": "",
    "concat": "",
    "exp": "y",
    "log": "x",
    "sqrt": "y",
    "square": "x",
    "cube": "x",
    "maximum": "x1 x2",
    "minimum": "x1 x2",
    "where": "condition",
    "linear": "x W",
    "linear_with_bias": "x W",
    "convolution_output": "x W",
    "convolution_with_bias": "x W",
    "convolution_input": "y W",
    "convolution_filter": "x y",
    "softmax_cross_entropy": "x aux",
    "sigmoid_cross_entropy": "x aux",
    "batch_normalization": "x gamma aux",
    "sum_windows": "",
    "spread_windows": "",
    "take_from_windows": "",
    "place_in_windows": "",
    "max_windows": "aux",
    "contract": "a b",
    "expm1": "y",
    "log1p": "x",
    "log2": "x",
    "log10": "x",
    "rsqrt": "y",
    "squared_difference": "x1 x2",
    "fmod": "x divisor",
    "clip": "x",
    "sin": "x",
    "cos": "x",
    "tan": "y",
    "arcsin": "x",
    "arccos": "x",
    "arctan": "x",
    "arctan2": "x1 x2",
    "lorentzian": "x y",
    "inverse_part": "x1 x2",
    "sinh": "x",
    "cosh": "x",
    "arctanh": "x",
    "copy": "aux",
    "flip": "",
    "map_axis": "",
    "matrix_product": "a b",
    "sample_normalization": "x gamma aux",
    "rms_normalization": "x gamma aux",
    "normalize": "x aux",
    "neighbors": "",
    "huber": "x",
    "log_add": "a b c y",
    "alignment_loss": "emissions aux y",
    "local_response_normalization": "x aux",
    "identity": "",
    "linear_interpolate": "p x y",
    "cumprod": "x y",
    "cumsum": "",
    "max": "x y",
    "min": "x y",
    "prod": "x",
    "logsumexp": "x aux",
    "erf": "x",
    "erfc": "x",
    "erfcx": "x y",
    "erfinv": "y",
    "erfcinv": "y",
    "ndtr": "x",
    "ndtri": "y",
    "bell": "x y",
    "normal_hazard": "x y",
    "log_of_rest_of_exp": "x",
    "log_poisson": "x lam",
    "share_of_lower": "a x y",
    "share_of_upper": "a x y",
    "log_lower_gamma": "a x",
    "log_upper_gamma": "a x",
    "log_ndtr": "x",
    "lgamma": "x",
    "digamma": "x",
    "polygamma": "x",
    "zeta": "q",
    "clipped_relu": "y",
    "prelu": "x slope",
    "elu": "x",
    "hard_sigmoid": "y",
    "silu": "x",
    "mish": "x",
    "gelu": "x",
    "gelu_slope": "x",
    "gelu_tanh": "x",
    "separate": "",
    "stack": "",
    "cut_sequences": "",
    "pad_sequence": "",
    "transpose_sequence": "",
    "lyapunov": "S y",
    "inverse_root": "y",
    "transform": "",
    "unfold_windows": "",
    "fold_windows": "",
    "take": "",
    "place": "",
    "scatter_add": "",
    "inverse": "y",
    "determinant": "a y",
    "cholesky": "y",
    "pad_with_constants": "",
    "map_boxes": "",
    "spread_boxes": "",
    "sums_of_rows": "data x",
    "products_of_rows": "y x",
    "shift": "",
    "shifted_and_scaled": "x mean scale",
    "take_rows": "",
    "take_along": "",
    "put_along": "",
    "drop": "",
    "add_rows": "",
    "rotate": "",
    "split_gates": "",
    "join_gates": "",
    "lstm": "c_prev x",
    "slstm": "c_prev1 c_prev2 x1 x2",
    "tree_lstm": "x0 x1",
    "gru": "h x u",
    "recurrent_layer": "x0 x1 aux",
    "gamma_variate": "a y",
    "lower_gamma": "a x",
    "upper_gamma": "a x",
    "multi_node_batch_normalization": "x gamma aux",
}


def _kept(declaration):
    """Returns the names of the arrays that a declaration's node keeps if every input needs a
    gradient."""
    names = ("x0", "x1") if declaration.takes_sequence else declaration.array_names
    by = declaration.derivatives or [True] * len(names)
    targets = tuple(i for i, derivative in enumerate(by) if derivative is not None)
    node = declaration.node_class()
    node._aux = "aux" if declaration.has_aux else None
    node.keep(names, targets, ("ys",) if declaration.has_many_outputs else ("y",))
    return " ".join("ys" if name == ("ys",) else name for name in node._kept if name is not None)


def _declarations():
    return {n: d for n, d in registry.items() if d.body.__module__.startswith("mpchain.")}


def test_every_declaration_is_in_the_table():
    found = {name: _kept(declaration) for name, declaration in _declarations().items()}
    missing = {name: kept for name, kept in found.items() if name not in KEPT}
    assert not missing, "rows to add, if they are as they should be:\n" + "\n".join(
        f'    "{name}": "{kept}",' for name, kept in missing.items()
    )
    assert set(KEPT) <= set(found)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name):
    assert _kept(registry[name]) == KEPT[name]


def test_arguments_that_are_kept_are_those_that_derivatives_name():
    for declaration in _declarations().values():
        formulas = [f for f in declaration.derivatives if f is not None]
        asked = {name for f in formulas for name in list(inspect.signature(f).parameters)[1:]}
        if formulas:
            allowed = set(declaration.array_names) | {"y", "ys", "aux"}
            assert set(_kept(declaration).split()) <= asked & allowed | {"aux"}


# The nodes of real calls.


def _nodes_arrays(y):
    """Returns the arrays that the node of a variable keeps, including those in tuples."""
    held = []
    for value in y.creator._kept:
        held += value if isinstance(value, tuple) else [value]
    return [value for value in held if value is not None]


def _same(held, *arrays):
    return len(held) == len(arrays) and all(a is b for a, b in zip(held, arrays))


def test_nodes_hold_the_arrays_themselves():
    x, w = Variable(np.array([[0.5, 2.0]])), Variable(np.array([[3.0, 4.0]]))
    y = F.sigmoid(x)
    assert isinstance(y.creator, Application) and _same(_nodes_arrays(y), y.array)
    assert _same(_nodes_arrays(F.log(x)), x.array)
    assert _same(_nodes_arrays(x * w), x.array, w.array)
    assert _nodes_arrays(x + w) == _nodes_arrays(F.sum(x)) == _nodes_arrays(-x) == []
    assert _nodes_arrays(F.concat([x, w])) == [] and _nodes_arrays(F.split_axis(x, 2, 1)[0]) == []


def test_only_what_the_wanted_derivatives_need_is_kept():
    x, w = Variable(np.array([[0.5, 2.0]])), Variable(np.array([[3.0, 4.0]]))
    fixed_x, fixed_w = x.array, w.array
    assert _same(_nodes_arrays(x * fixed_w), fixed_w)
    assert _same(_nodes_arrays(fixed_x * w), fixed_x)
    assert _same(_nodes_arrays(F.linear(fixed_x, w)), fixed_x)
    assert _same(_nodes_arrays(F.linear(x, fixed_w)), fixed_w)
    assert _same(_nodes_arrays(x / fixed_w), fixed_w)
    y = fixed_x / w
    assert _same(_nodes_arrays(y), fixed_w, y.array)


def test_an_output_that_is_not_kept_can_go_at_once():
    x = Variable(np.ones(3))
    h = x + 1
    y = F.relu(h)
    assert all(array is not h.array for array in _nodes_arrays(y))
    assert _same(_nodes_arrays(y), y.array)


def test_pooling_keeps_places_and_not_the_image():
    x = Variable(np.random.randn(2, 3, 4, 4))
    (places,) = _nodes_arrays(F.max_pooling_2d(x, 2))
    assert places.dtype == np.int32 and places.shape == (2, 3, 2, 2)
    node = F.average_pooling_2d(x, 2).creator.inputs[0].creator_node
    assert [value for value in node._kept if value is not None] == []


def test_nothing_is_kept_without_a_graph():
    x = Variable(np.ones(3), requires_grad=False)
    assert F.sigmoid(x).creator is None
