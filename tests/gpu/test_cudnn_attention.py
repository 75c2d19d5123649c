"""Tests attention with masks and biases by cuDNN's kernels, on its double."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import kernels

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
SHAPES = (2, 3, 6, 8), (2, 3, 5, 8), (2, 3, 5, 16)
"""The shapes of query, key and value."""


def _draw(*shape, dtype=np.float16):
    return np.random.randn(*shape).astype(dtype)


def _rows():
    """Returns a mask that leaves some queries without keys."""
    mask = np.random.rand(2, 3, 6, 5) > 0.4
    mask[0, 1, 2] = mask[1, :, 0] = False
    return mask


LENGTHS = np.array([3, 5])[:, None, None, None]
GIVEN = {
    "padding": lambda: {"mask": np.arange(5) < LENGTHS},
    "rows": lambda: {"mask": _rows()},
    "a mask for all": lambda: {"mask": np.arange(5) > 1},
    "bias": lambda: {"bias": _draw(2, 3, 6, 5)},
    "a bias for all samples": lambda: {"bias": _draw(3, 6, 5)},
    "a bias of keys": lambda: {"bias": _draw(2, 1, 1, 5)},
    "both": lambda: {"mask": _rows(), "bias": _draw(6, 5)},
}


def _derivatives(device, values, given, **options):
    send = mpchain.get_device(device).send
    variables = [mpchain.Variable(send(value)) for value in values]
    given = {name: send(value) for name, value in given.items()}
    y = F.scaled_dot_product_attention(*variables, **given, **options)
    first = mpchain.grad([y * y], variables, enable_double_backprop=True)
    second = mpchain.grad([sum(F.sum(g * g) for g in first)], variables)
    y.grad = y.array
    y.backward()
    results = [v.array for v in (y, *first, *second)] + [v.grad for v in variables]
    return [mpchain.cuda.to_cpu(x).astype("f") for x in results]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", GIVEN)
def test_masks_and_biases(name, is_causal, library):
    values, given = [_draw(*shape) for shape in SHAPES], GIVEN[name]()
    on_gpu = _derivatives("@cupy:0", values, given, is_causal=is_causal)
    assert {tag for tag, _ in library.executed} == {"SDPA", "SDPA_BWD"}
    on_host = _derivatives("@numpy", values, given, is_causal=is_causal)
    for result, right in zip(on_gpu, on_host, strict=True):
        np.testing.assert_allclose(result, right, 0.03, 0.03 * np.abs(right).max())


def test_queries_without_keys_get_zeros(library):
    values, mask = [_draw(*shape) for shape in SHAPES], np.ones((6, 5), bool)
    mask[2], mask[3, :4] = False, False  # with a causal mask, query 3 has no key either
    for is_causal in (False, True):
        y, *_ = _derivatives("@cupy:0", values, {"mask": mask}, is_causal=is_causal)
        assert (np.abs(y).max(axis=(0, 1, 3)) == 0).tolist() == [
            i == 2 or (i == 3 and is_causal) for i in range(6)
        ]


def test_a_mask_takes_few_launches(library, double):
    send = mpchain.get_device("@cupy:0").send
    arrays = [send(_draw(*shape)) for shape in SHAPES]
    mask = send(np.arange(5) < LENGTHS)
    F.scaled_dot_product_attention(*arrays, mask=mask)
    double.reset()
    F.scaled_dot_product_attention(*arrays, mask=mask)
    # The mask becomes a bias with written-out rows; three kernels are for queries without keys.
    assert [name for name, _ in double.launches.elements()].count("cudnn") == 1
    assert double.launches.total() <= 6, double.launches
    assert not double.synchronizations


def _is_taken(library, values, given):
    send = mpchain.get_device("@cupy:0").send
    library.executed.clear()
    F.scaled_dot_product_attention(*map(send, values), **{k: send(x) for k, x in given.items()})
    return bool(library.executed)


def test_what_is_composed_of_other_functions(library):
    values = [_draw(*shape) for shape in SHAPES]
    assert _is_taken(library, values, GIVEN["padding"]())
    assert not _is_taken(library, values, {"bias": _draw(6, 5, dtype=np.float32)})
    assert not _is_taken(library, [x.astype("f") for x in values], GIVEN["padding"]())
    assert not _is_taken(library, [x[0] for x in values], {"mask": np.ones((3, 6, 5), bool)})
    of_all = [values[0], *(x[:1] for x in values[1:])]
    assert not _is_taken(library, of_all, {"mask": np.ones((2, 1, 1, 5), bool)})
    arrays = [mpchain.get_device("@cupy:0").send(x) for x in values]
    learned = mpchain.Variable(mpchain.get_device("@cupy:0").send(_draw(3, 6, 5)))
    y = F.scaled_dot_product_attention(*arrays, bias=learned)
    y.grad = y.array
    y.backward()
    assert learned.grad is not None and not library.executed
    with mpchain.no_backprop_mode():
        F.scaled_dot_product_attention(*arrays, bias=learned)
    assert [tag for tag, _ in library.executed] == ["SDPA"]


def test_which_biases_the_kernel_refuses(library):
    send = mpchain.get_device("@cupy:0").send
    arrays = [send(_draw(*shape)) for shape in SHAPES]
    (kernel,) = (k for k in kernels.attention.kernels if k.library == "cudnn")
    rule = "a bias that is not (1 or B, 1 or heads, L, S)"
    for shape in ((2, 3, 6, 5), (1, 1, 6, 5)):
        assert kernel.refuse(*arrays, 1.0, False, send(_draw(*shape))) is None
    for shape in ((6, 5), (2, 3, 1, 5), (2, 2, 6, 5), (2, 3, 6, 1)):
        assert kernel.refuse(*arrays, 1.0, False, send(_draw(*shape))) == rule
