"""Tests the errors of losses, noise, normalization and measures for wrong inputs."""

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType

pytestmark = pytest.mark.slow


def f(*shape):
    return np.ones(shape, np.float32)


def i(*shape, value=1):
    return np.full(shape, value, np.int32)


# For each function: calls that must fail, and the texts that the message must contain besides the
# function's name: the rule or argument, and the wrong value.
_ALIKE = {
    "absolute_error": ("x0", "x1"),
    "mean_absolute_error": ("x0", "x1"),
    "squared_error": ("x0", "x1"),
    "mean_squared_error": ("x0", "x1"),
    "smooth_l1_loss": ("x", "t"),
    "bernoulli_nll": ("x", "y"),
    "gaussian_kl_divergence": ("mean", "ln_var"),
    "gaussian": ("mean", "ln_var"),
    "zoneout": ("h", "x"),
}
WRONG = {
    "huber_loss": [
        ((f(3, 2), f(2, 3), 1), "x, t must have the same shape", "(2, 3)"),
        ((f(3, 2), i(3, 2), 1), "floating point", "int32"),
        ((f(3), f(3), 1), "two axes or more", "(3,)"),
    ],
    "gaussian_nll": [
        ((f(3), f(3), f(2)), "ln_var must have the same shape", "(2,)"),
        ((f(3), i(3), f(3)), "floating point", "int32"),
    ],
    "hinge": [
        ((f(3), i(3)), "(N, C)", "(3,)"),
        ((i(3, 2), i(3)), "floating point", "int32"),
        ((f(3, 2), i(2)), "an integer per sample", "(2,)"),
        ((f(3, 2), f(3)), "an integer per sample", "float32"),
        ((f(3, 2), i(3, value=2)), "every element of t", "one is 2"),
        ((f(3, 2), i(3, value=-1)), "every element of t", "one is -1"),
    ],
    "focal_loss": [
        ((f(3), i(2)), "t must be integers of the shape of x", "(2,)"),
        ((f(3), f(3)), "t must be integers", "float32"),
        ((i(3), i(3)), "floating point", "int32"),
        ((f(3), i(3, value=2)), "every element of t", "one is 2"),
    ],
    "contrastive": [
        ((f(2, 3), f(2, 2), i(2)), "(N, D), and have the same shape", "(2, 2)"),
        ((f(2, 3, 1), f(2, 3, 1), i(2)), "(N, D)", "(2, 3, 1)"),
        ((f(2, 3), f(2, 3), f(2)), "y must hold an integer per pair", "float32"),
        ((f(2, 3), f(2, 3), i(3)), "y must hold an integer per pair", "(3,)"),
        ((i(2, 3), i(2, 3), i(2)), "floating point", "int32"),
    ],
    "triplet": [
        ((f(2), f(2), f(2)), "(N, D, ...)", "(2,)"),
        ((f(2, 3), f(2, 3), f(3, 3)), "the same shape", "(3, 3)"),
        ((f(2, 3), i(2, 3), f(2, 3)), "floating point", "int32"),
    ],
    "cross_covariance": [
        ((f(2, 3), f(2)), "z must be floating point (N, D)", "(2,)"),
        ((i(2, 3), f(2, 3)), "y must be floating point (N, D)", "int32"),
        ((f(2, 3), f(3, 3)), "the same number of samples", "(3, 3)"),
    ],
    "decov": [((f(3),), "(N, D)", "(3,)"), ((i(3, 2),), "floating point", "int32")],
    "discriminative_margin_based_clustering_loss": [
        ((f(1, 2, 3), i(1, 3), 1, 1, 2), "(N, max_embedding_dim, height, width)", "(1, 2, 3)"),
        ((f(1, 2, 3, 4), i(1, 3, 4), 1, 1, 3), "max_embedding_dim: 3"),
        ((f(1, 2, 3, 4), i(1, 4, 3), 1, 1, 2), "labels must be integers", "(1, 4, 3)"),
        ((f(1, 2, 3, 4), f(1, 3, 4), 1, 1, 2), "labels must be integers", "float32"),
        ((i(1, 2, 3, 4), i(1, 3, 4), 1, 1, 2), "floating point", "int32"),
    ],
    "negative_sampling": [
        ((f(2, 3), i(2), f(4, 2), None, 1), "with the same D", "(4, 2)"),
        ((f(2), i(2), f(4, 2), None, 1), "x must be (N, D)", "(2,)"),
        ((f(2, 3), i(3), f(4, 3), None, 1), "an integer per sample", "(3,)"),
        ((f(2, 3), f(2), f(4, 3), None, 1), "an integer per sample", "float32"),
        ((f(2, 3), i(2, value=4), f(4, 3), None, 1), "every element of t", "one is 4"),
    ],
    "black_out": [
        ((f(2, 3), i(2), f(4, 2), i(2, 1)), "with the same D", "(4, 2)"),
        ((f(2, 3), i(2), f(4, 3), i(2)), "samples must be integers (N, S)", "(2,)"),
        ((f(2, 3), i(2), f(4, 3), i(2, 0)), "S at least 1", "(2, 0)"),
        ((f(2, 3), i(2), f(4, 3), f(2, 1)), "samples must be integers", "float32"),
        ((f(2, 3), i(2), f(4, 3), i(2, 1, value=-1)), "every element of samples", "one is -1"),
        ((f(2, 3), i(2, value=4), f(4, 3), i(2, 1)), "every element of t", "one is 4"),
    ],
    "gumbel_softmax": [
        ((i(2, 3),), "floating point", "int32"),
        ((f(3),), "axis must be an axis of log_pi", "axis: 1"),
    ],
    "simplified_dropconnect": [
        ((f(2), f(3, 2)), "x must be (N, ...)", "(2,)"),
        ((f(2, 4), f(3, 2)), "as many columns", "(3, 2)"),
        ((i(2, 2), f(3, 2)), "floating point", "int32"),
        ((f(2, 2), f(3, 2), f(2)), "one element per output", "(2,)"),
        ((f(2, 2), f(3, 2), None, 0.5, True, f(3, 3)), "mask must be (N, O, I)", "(3, 3)"),
    ],
    "batch_renormalization": [
        (
            (f(3, 2), f(3), f(2), 1, 0, 1e-5, f(2), f(2)),
            "gamma must have shape (2,)",
            "(3,)",
        ),
        (
            (f(3, 2), f(2), f(2), 1, 0, 1e-5, f(3), f(2)),
            "running_mean must have shape (2,)",
            "(3,)",
        ),
        ((i(3, 2), f(2), f(2), 1, 0, 1e-5, f(2), f(2)), "floating point", "int32"),
    ],
    "fixed_batch_renormalization": [
        ((f(3, 2), f(2), f(2), f(2), f(3)), "var must have shape (2,)", "(3,)"),
        ((i(3, 2), f(2), f(2), f(2), f(2)), "floating point", "int32"),
    ],
    "decorrelated_batch_normalization": [
        ((f(3), {"groups": 1}), "(N, C, ...)", "(3,)"),
        ((f(3, 4), {"groups": 3}), "groups=3 must divide the number", "(3, 4)"),
        ((i(3, 4), {"groups": 2}), "floating point", "int32"),
        ((f(3, 4), {"groups": 2, "running_mean": f(4)}), "shape (2, 2)", "(4,)"),
        ((f(3, 4), {"groups": 2, "running_projection": f(4, 4)}), "shape (2, 2, 2)", "(4, 4)"),
    ],
    "fixed_decorrelated_batch_normalization": [
        ((f(3, 4), f(4), f(2, 2, 2), 2), "the mean must have the shape (2, 2)", "(4,)"),
        ((f(3, 4), f(2, 2), f(2, 2), 2), "the projection must have the shape", "(2, 2)"),
        ((f(3, 4), f(2, 2), f(2, 2, 2), 3), "groups=3 must divide", "(3, 4)"),
    ],
    "layer_normalization": [
        ((f(3, 2), f(3), f(2)), "gamma must have the shape of the last axes", "(3,)"),
        ((f(3, 2), f(2), f(3)), "beta must have the shape of the last axes", "(3,)"),
        ((f(3, 2), f(1, 3, 2), f(1, 3, 2)), "gamma must have", "(1, 3, 2)"),
        ((f(3, 2), f(), f()), "gamma must have", "()"),
        ((i(3, 2), f(2), f(2)), "x must be floating point", "int32"),
        ((f(3, 2), f(2), i(2)), "beta must have", "int32"),
    ],
    "rms_normalization": [
        ((f(3, 2), f(3)), "gamma must have the shape of the last axes", "(3,)"),
        ((f(), f()), "x must be floating point, with axes", "()"),
        ((i(3, 2), f(2)), "floating point", "int32"),
    ],
    "group_normalization": [
        ((f(4), 2, f(4), f(4)), "(N, C, ...)", "(4,)"),
        ((f(3, 4), 2, f(2), f(4)), "gamma must have one element per channel", "(2,)"),
        ((f(3, 4), 2, f(4), f(3)), "beta must have one element per channel", "(3,)"),
        ((i(3, 4), 2, f(4), f(4)), "floating point", "int32"),
    ],
    "instance_normalization": [
        ((f(3, 4), f(4), f(4)), "3 axes or more", "(3, 4)"),
        ((f(3, 4, 2), f(2), f(4)), "gamma must have one element per channel", "(2,)"),
        ((i(3, 4, 2), f(4), f(4)), "floating point", "int32"),
    ],
    "normalize": [
        ((f(3),), "every axis", "axis: 1"),
        ((f(3, 2), 1e-5, (0, 2)), "every axis", "axis: (0, 2)"),
        ((i(3, 2),), "floating point", "int32"),
    ],
    "local_response_normalization": [
        ((f(3),), "(N, C, ...)", "(3,)"),
        ((i(3, 2),), "floating point", "int32"),
    ],
    "r2_score": [
        ((f(3), f(2)), "the same shape (N, ...)", "(2,)"),
        ((f(), f()), "the same shape (N, ...)", "()"),
        ((f(3), i(3)), "floating point", "int32"),
        ((f(3), f(3), f(2)), "sample_weight must hold a number per sample", "(2,)"),
    ],
} | {
    name: [
        ((f(3, 2), f(3, 4)), f"{first}", f"{second}: float32 (3, 4)", "same shape"),
        ((f(3, 2), i(3, 2)), "floating point", f"{second}: int32"),
    ]
    for name, (first, second) in _ALIKE.items()
}
for _name in ("classification_summary", "precision", "recall", "f1_score"):
    WRONG[_name] = [
        ((f(3), i(3)), "y must be floating point (N, C, ...)", "(3,)"),
        ((f(3, 2), f(3)), "t integers", "float32"),
        ((f(3, 2), i(2)), "t must have the shape of y without axis 1", "(2,)"),
        ((f(3, 2), i(3, value=5), 4), "every element of t", "one is 5"),
    ]
CASES = [
    pytest.param(name, arguments, shown, id=f"{name}-{number}")
    for name, cases in WRONG.items()
    for number, (arguments, *shown) in enumerate(cases)
]


def _as_variable(value):
    is_input = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return Variable(value) if is_input else value


@pytest.mark.parametrize("wrap", [lambda x: x, _as_variable], ids=["arrays", "variables"])
@pytest.mark.parametrize("name, arguments, shown", CASES)
def test_the_message_names_function_rule_and_value(name, arguments, shown, wrap):
    options = {}
    if isinstance(arguments[-1], dict):
        *arguments, options = arguments
    with pytest.raises((InvalidType, ValueError)) as caught:
        getattr(F, name)(*map(wrap, arguments), **options)
    message = str(caught.value)
    assert message.startswith(f"{name}: "), message
    for text in shown:
        assert text in message, message
