"""Tests attention against PyTorch."""

import functools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.functions import attention as attention_functions
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row
from tests.reference import torch

attend = torch.nn.functional.scaled_dot_product_attention
_MASK = np.array([[True, False, True, True], [False, True, False, False], [True] * 4])
_QKV = [(2, 3, 2), (2, 4, 2), (2, 4, 3)]
B, L, S, I, J, K, H, D, O = 2, 3, 4, 4, 3, 2, 2, 2, 3
_WEIGHTS = [(H * D, I), (H * D, J), (H * D, K), (I, H * D)]
_OWN_WEIGHTS = [(H * D, I)] * 3 + [(I, H * D)]
_BIASES = [(H * D,), (H * D,), (H * D,), (I,)]


def _ours(mask=None, **options):
    def function(q, k, v, *bias):
        options_here = {**options, **({"bias": bias[0]} if bias else {})}
        m = None if mask is None else q.device.send(mask)
        return F.scaled_dot_product_attention(q, k, v, m, **options_here)

    return function


def _heads_of_torch(q, k, v, Wq, Wk, Wv, Wo, *biases, mask=None, is_causal=False):
    bias = torch.cat(biases[:3]) if biases else None
    if is_causal:
        mask = torch.ones(L, S).tril() > 0
    y, _ = torch.nn.functional.multi_head_attention_forward(
        q.transpose(0, 1),
        k.transpose(0, 1),
        v.transpose(0, 1),
        I,
        H,
        None,
        bias,
        None,
        None,
        False,
        0.0,
        Wo,
        biases[3] if biases else None,
        use_separate_proj_weight=True,
        q_proj_weight=Wq,
        k_proj_weight=Wk,
        v_proj_weight=Wv,
        # PyTorch's mask is true where positions are hidden, mpchain's where they are visible.
        attn_mask=None if mask is None else ~torch.as_tensor(mask),
        need_weights=False,
    )
    return y.transpose(0, 1)


def _multi_head(*arrays, mask=None, **options):
    if mask is not None:
        mask = arrays[0].device.send(mask)
    return F.multi_head_attention(*arrays, n_heads=H, mask=mask, **options)


TABLE = [
    row("attention", F.scaled_dot_product_attention, attend, *_QKV),
    row(
        "attention of heads",
        F.scaled_dot_product_attention,
        attend,
        (2, 2, 3, 2),
        (2, 2, 4, 2),
        (2, 2, 4, 1),
    ),
    row(
        "attention mask",
        _ours(_MASK),
        functools.partial(attend, attn_mask=torch.tensor(_MASK)),
        *_QKV,
    ),
    row("attention is_causal", _ours(is_causal=True), lambda *x: attend(*x, is_causal=True), *_QKV),
    row(
        "attention mask and is_causal",
        _ours(_MASK | np.eye(3, 4, dtype=bool), is_causal=True),
        lambda *x: attend(*x, torch.tensor(_MASK | np.eye(3, 4, dtype=bool)).tril()),
        *_QKV,
    ),
    row("attention scale", _ours(scale=0.3), lambda *x: attend(*x, scale=0.3), *_QKV),
    row(
        "attention mask and large scale",
        _ours(_MASK, scale=3.0),
        functools.partial(attend, attn_mask=torch.tensor(_MASK), scale=3),
        *_QKV,
        orders=1,
    ),
    row("attention bias", _ours(), attend, *_QKV, (3, 4)),
    row(
        "scaled_softmax",
        lambda x: attention_functions._scaled_softmax(x, 1, 0.3),
        lambda x: torch.softmax(0.3 * x, 1),
        (3, 4),
    ),
    row(
        "add_and_order",
        attention_functions._add_and_order,
        lambda y, b: y + b.reshape(3, 2, 1),
        (B, L, 3, 2, 1),
        (6,),
    ),
    row(
        "with_contiguous_gradient",
        lambda x: attention_functions._with_contiguous_gradient(x * x),
        lambda x: x * x,
        (3, 4),
    ),
    row(
        "multi_head_attention",
        _multi_head,
        _heads_of_torch,
        (B, L, I),
        (B, S, J),
        (B, S, K),
        *_WEIGHTS,
        orders=2,
    ),
    row(
        "multi_head_attention bias",
        functools.partial(_multi_head, mask=_MASK),
        functools.partial(_heads_of_torch, mask=_MASK),
        (B, L, I),
        (B, S, J),
        (B, S, K),
        *_WEIGHTS,
        *_BIASES,
        orders=2,  # another row checks the third derivatives of softmax and matmul
    ),
    row(
        "multi_head_attention is_causal",
        functools.partial(_multi_head, is_causal=True),
        functools.partial(_heads_of_torch, is_causal=True),
        (B, L, I),
        (B, S, J),
        (B, S, K),
        *_WEIGHTS,
        orders=1,
    ),
    row(
        "multi_head_attention of one sequence",
        lambda x, *weights: _multi_head(x, x, x, *weights),
        lambda x, *weights: _heads_of_torch(x, x, x, *weights),
        (B, L, I),
        *_OWN_WEIGHTS,
        *_BIASES,
        orders=2,
    ),
    row(
        "multi_head_attention of one sequence, no bias",
        lambda x, *weights: _multi_head(x, x, x, *weights),
        lambda x, *weights: _heads_of_torch(x, x, x, *weights),
        (B, L, I),
        *_OWN_WEIGHTS,
        orders=1,
    ),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_query_that_may_see_nothing(dtype):
    q, k, v = (Variable(np.ones(shape, dtype)) for shape in _QKV)
    mask = np.array([[True] * 4, [False] * 4, [True] * 4])
    y = F.scaled_dot_product_attention(q, k, v, mask)
    np.testing.assert_array_equal(y.array[:, 1], np.zeros((2, 3)))
    np.testing.assert_allclose(y.array[:, 0], np.ones((2, 3)), 1e-3)
    F.sum(y).backward()
    np.testing.assert_array_equal(q.grad[:, 1], np.zeros((2, 2)))
    np.testing.assert_allclose(v.grad, np.full(v.shape, 0.5), 1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_inputs(dtype):
    q, k, v = (Variable(np.full(shape, 1e4, dtype)) for shape in _QKV)
    y = F.scaled_dot_product_attention(q, k, v, _MASK)
    np.testing.assert_allclose(y.array, np.full(y.shape, 1e4), 1e-5)
    F.sum(y).backward()
    assert all(np.isfinite(x.grad).all() for x in (q, k, v))


def test_nothing_to_attend_to():
    q, k, v = f(2, 3, 4), f(2, 1, 4), f(2, 1, 5)
    y = F.scaled_dot_product_attention(q[:, :0], k, v)
    assert y.shape == (2, 0, 5)
    assert F.scaled_dot_product_attention(q[:0], k[:0], v[:0]).shape == (0, 3, 5)
    assert _heads(*_multi((0, 3, 4), (0, 5, 4), (0, 5, 4))).shape == (0, 3, 4)


def test_dropout_of_weights():
    q, k, v = (np.random.uniform(-1, 1, shape) for shape in [(1, 50, 2), (1, 40, 2), (1, 40, 1)])
    v[:] = 1
    y = F.scaled_dot_product_attention(q, k, v, dropout_ratio=0.5).array
    assert y.std() > 0.05 and abs(y.mean() - 1) < 0.1
    with mpchain.using_config("train", False):
        y = F.scaled_dot_product_attention(q, k, v, dropout_ratio=0.5).array
    np.testing.assert_allclose(y, np.ones_like(y), 1e-12)


def f(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def _multi(q=(2, 3, 4), k=(2, 5, 4), v=(2, 5, 4), Wk=(4, 4), Wo=(4, 4)):
    return f(*q), f(*k), f(*v), f(4, 4), f(*Wk), f(4, 4), f(*Wo)


def _heads(*arrays, n_heads=2):
    return F.multi_head_attention(*arrays, n_heads=n_heads)


attention = F.scaled_dot_product_attention
WRONG = [
    (
        attention,
        (f(2, 3), f(2, 3), f(2, 3, dtype=np.float64)),
        "the same floating-point dtype",
        "float64",
    ),
    (attention, (f(2, 3, dtype=int),) * 3, "the same floating-point dtype", "int64"),
    (attention, (f(3), f(2, 3), f(2, 3)), "(..., L, E), (..., S, E) and (..., S, V)", "(3,)"),
    (attention, (f(4, 2), f(2, 3), f(2, 3)), "(..., S, E)", "(4, 2)"),
    (attention, (f(4, 3), f(2, 3), f(5, 3)), "(..., S, V)", "(5, 3)"),
    (attention, (f(4, 3), f(2, 3), f(2, 3), f(4, 2)), "mask must be bool", "float32"),
    (attention, (f(4, 3), f(2, 3), f(2, 3), f(3, 2, dtype=bool)), "broadcast to (4, 2)", "(3, 2)"),
    (_heads, _multi(q=(3, 4)), "(B, L, I), (B, S, J) and (B, S, K)", "(3, 4)"),
    (_heads, _multi(k=(2, 6, 4)), "(B, S, J)", "(2, 6, 4)"),
    (_heads, _multi(Wk=(6, 4)), "Wq and Wk must have equally many rows", "(6, 4)"),
    (_heads, _multi(Wo=(4, 5)), "Wo must have as many columns as Wv has rows", "(4, 5)"),
    (functools.partial(_heads, n_heads=3), _multi(), "n_heads must divide", "n_heads: 3"),
    (functools.partial(_heads, n_heads=0), _multi(), "n_heads must divide", "n_heads: 0"),
]


@pytest.mark.parametrize("function, arguments, shown", [(n, a, s) for n, a, *s in WRONG])
def test_wrong_input(function, arguments, shown):
    with pytest.raises(InvalidType) as caught:
        function(*arguments)
    message = str(caught.value)
    name = "scaled_dot_product_attention" if function is attention else "multi_head_attention"
    assert message.startswith(f"{name}: ")
    for text in shown:
        assert text in message, message


def test_wrong_bias():
    with pytest.raises(InvalidType, match=r"bias must be .* broadcast to \(4, 2\): .*\(3, 2\)"):
        attention(f(4, 3), f(2, 3), f(2, 3), bias=f(3, 2))
