"""Tests attention with dropout in cuDNN's kernels, on its double: by sample, or from a seed."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import kernels, optimizers
from mpchain.functions.fused_attention import OWN_GENERATOR
from mpchain.random import SampleGenerator, rows_of

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
SHAPES = (2, 3, 6, 8), (2, 3, 5, 8), (2, 3, 5, 16)
"""The shapes of query, key and value."""
attend = F.scaled_dot_product_attention


def _draw(*shape):
    return np.random.randn(*shape).astype(np.float16)


def _values():
    return [_draw(*shape) for shape in SHAPES]


def _send(device, *values):
    send = mpchain.get_device(device).send
    return [send(x) for x in values]


def _generator(first=0, n=2, **options):
    return SampleGenerator((5, 7), step=3, first=first, n=n, **options)


def _derivatives(device, values, compute):
    """Returns the result of a function of query, key and value, its gradients, gradients of these,
    and the gradients by ``backward``."""
    variables = [mpchain.Variable(x) for x in _send(device, *values)]
    y = compute(*variables)
    first = mpchain.grad([y * y], variables, enable_double_backprop=True)
    second = mpchain.grad([sum(F.sum(g * g) for g in first)], variables)
    y.grad = y.array
    y.backward()
    results = [v.array for v in (y, *first, *second)] + [v.grad for v in variables]
    return [mpchain.cuda.to_cpu(x).astype("f") for x in results]


def _check(results, expected):
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, right, 0.03, 0.03 * np.abs(right).max())


GIVEN = {
    "nothing": lambda: {},
    "causal": lambda: {"is_causal": True},
    "mask": lambda: {"mask": np.arange(5) > 0},
    "bias": lambda: {"bias": _draw(2, 3, 6, 5), "is_causal": True},
}


@pytest.mark.parametrize("has_rows", [False, True])
@pytest.mark.parametrize("name", GIVEN)
def test_samples_have_their_mask_on_all_devices(name, has_rows, library):
    values, given = _values(), GIVEN[name]()

    def computed(device):
        own = {k: _send(device, x)[0] if k != "is_causal" else x for k, x in given.items()}

        def compute(*arrays):
            with _generator().in_use(), rows_of([1, 0] if has_rows else None):
                return attend(*arrays, dropout_ratio=0.4, **own)

        return _derivatives(device, values, compute)

    on_gpu = computed("@cupy:0")
    assert {tag for tag, _ in library.executed} == {"SDPA", "SDPA_BWD"}
    _check(on_gpu, computed("@numpy"))


def test_without_training_nothing_is_dropped(library):
    values = _values()
    with mpchain.using_config("train", False):
        y = attend(*_send("@cupy:0", *values), dropout_ratio=0.4).array.get()
        np.testing.assert_allclose(y, attend(*values).array, 0.01, 0.01)
    assert [tag for tag, _ in library.executed] == ["SDPA"]


def test_two_ranks_drop_what_one_process_drops(library):
    values = _values()

    def gradients(part, generator):
        variables = [mpchain.Variable(x[part]) for x in _send("@cupy:0", *values)]
        with generator.in_use():
            y = attend(*variables, dropout_ratio=0.4)
        y.grad = y.array
        y.backward()
        return [x.get() for x in (y.array, *(v.grad for v in variables))]

    whole = gradients(slice(None), _generator())
    parts = [gradients(slice(i, i + 1), _generator(i, 1, stream=i)) for i in range(2)]
    for x, *of_ranks in zip(whole, *parts, strict=True):
        np.testing.assert_array_equal(x, np.concatenate(of_ranks))


def _seed(seed):
    mpchain.cuda.cupy.random.seed(seed)


def _mask(n, ratio, draw=lambda: _seed(3)):
    """Returns which of equal weights (2, 3, n, n) attention keeps."""
    query, value = np.zeros((2, 3, n, 8), "e"), np.broadcast_to(np.eye(n, dtype="e"), (2, 3, n, n))
    draw()
    y = attend(*_send("@cupy:0", query, query, value), dropout_ratio=ratio).array.get()
    kept = y != 0
    np.testing.assert_allclose(y[kept], 1 / (1 - ratio) / n, 2e-3)
    return kept


def test_a_seed_draws_one_mask(library):
    first, again, other = (_mask(64, 0.25, lambda seed=seed: _seed(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert abs(first.mean() - 0.75) < 4 * (0.25 * 0.75 / first.size) ** 0.5
    assert abs((first == other).mean() - 0.625) < 0.02
    assert not np.array_equal(first, _mask(64, 0.25, lambda: None))  # this call has the next seed
    assert len(np.unique(first.reshape(-1, 64), axis=0)) == first.size // 64
    assert {tag for tag, _ in library.executed} == {"SDPA"}


@pytest.mark.parametrize("has_gradient", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_derivatives_have_the_mask_that_was_drawn(is_causal, has_gradient, library):
    """cuDNN has no gradient with dropout on a B200 if its bits must be the same each time."""
    values, ratio = [_draw(2, 3, 8, 8) for _ in range(3)], 0.3
    factors = _mask(8, ratio) / np.float16(1 - ratio)
    library.unsupported = set() if has_gradient else {"SDPA_BWD"}
    library.executed.clear()
    _seed(3)

    def fused(*arrays):
        return attend(*arrays, is_causal=is_causal, dropout_ratio=ratio)

    def composed(q, k, v):
        scores = F.matmul(q * 8**-0.5, F.swapaxes(k, -1, -2))
        if is_causal:
            is_later = np.triu(np.ones((8, 8), bool), 1)
            scores = F.where(is_later, np.array(-1e4, "e"), scores)
        weights = F.softmax(scores, axis=3)
        return F.matmul(F.dropout(weights, ratio, mask=factors.astype("e")), v)

    on_gpu = _derivatives("@cupy:0", values, fused)
    assert {tag for tag, _ in library.executed} == {"SDPA", *["SDPA_BWD"] * has_gradient}
    _check(on_gpu, _derivatives("@numpy", values, composed))


def test_tangents_have_the_mask_that_was_drawn(library):
    values, tangents = ([_draw(2, 3, 8, 8) for _ in range(3)] for _ in range(2))
    values, tangents = (tuple(_send("@cupy:0", *x)) for x in (values, tangents))
    _seed(3)
    _, ty = mpchain.jvp(lambda *arrays: attend(*arrays, dropout_ratio=0.3), values, tangents)
    variables = [mpchain.Variable(x) for x in values]
    _seed(3)
    y = attend(*variables, dropout_ratio=0.3)
    y.grad = g = _send("@cupy:0", _draw(*y.shape))[0]
    y.backward()
    along = sum(float((v.grad.astype("f") * t).sum()) for v, t in zip(variables, tangents))
    assert along == pytest.approx(float((g.astype("f") * ty.array).sum()), abs=0.3)


def test_ranks_draw_by_seeds_of_their_own_if_asked(library):
    def mask(stream, step=3):
        generator = SampleGenerator((5, 7), step=step, first=0, n=2, stream=stream)
        with generator.in_use(), mpchain.using_config("kernels", (OWN_GENERATOR,)):
            return _mask(16, 0.5, lambda: None)

    first = mask(0)
    np.testing.assert_array_equal(first, mask(0))
    assert all(0.4 < (first == x).mean() < 0.6 for x in (mask(1), mask(0, 4)))
    with _generator().in_use():
        of_samples = _mask(16, 0.5, lambda: None)
    assert 0.4 < (first == of_samples).mean() < 0.6


def test_a_mask_is_not_kept_and_nothing_waits(library, double):
    arrays = _send("@cupy:0", *(_draw(2, 3, 64, 8) for _ in range(3)))

    def launched(ratio):
        for _ in range(2):
            variables = [mpchain.Variable(x) for x in arrays]
            double.reset()
            y = attend(*variables, dropout_ratio=ratio)
            drawn = y.creator_node.constants[-1]
            y.grad = arrays[0]
            y.backward()
        assert not double.synchronizations
        assert getattr(getattr(drawn, "drawn", None), "nbytes", 0) <= 32
        return double.launches.copy()

    without = launched(0.0)
    assert (launched(0.1) - without).total() == 1  # the seed
    with _generator().in_use():
        masks = launched(0.1) - without
    assert [name for name, _ in masks.elements()] == ["mpchain_kept_wide"] * 2


def test_masks_of_seeds_need_the_library_that_drew_them(library):
    variables = [mpchain.Variable(x) for x in _send("@cupy:0", *_values())]
    y = attend(*variables, dropout_ratio=0.5)
    y.grad = y.array
    with mpchain.using_config("use_cudnn", "never"):
        with pytest.raises(ValueError, match=r"^attention: its dropout was drawn by a library"):
            y.backward()
    y.backward()


def test_a_ratio_out_of_range_is_refused(library):
    for ratio in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"^dropout: ratio must be at least 0 and below 1"):
            attend(*_send("@cupy:0", *_values()), dropout_ratio=ratio)


def test_single_precision_is_composed(library):
    arrays = _send("@cupy:0", *(x.astype("f") for x in _values()))
    assert attend(*arrays, dropout_ratio=0.5).dtype == np.float32
    assert not library.executed


def test_captured_steps_draw_in_each_launch(library):
    values = _send("@cupy:0", *(_draw(2, 3, 8, 8) for _ in range(3)))
    param = mpchain.Parameter(values[0])

    def step(k, v):
        param.cleargrad()
        y = attend(param, k, v, dropout_ratio=0.5)
        F.sum(y * y).backward()
        return y.array, param.grad

    captured = mpchain.capture(step)
    results = []
    for function in (captured, step):
        _seed(3)
        results.append([[x.get() for x in function(*values[1:])] for _ in range(6)])
    assert captured.reason is None
    for one, other in zip(*results, strict=True):
        for result, right in zip(one, other, strict=True):
            np.testing.assert_allclose(result, right, 1e-3, 1e-3)
    assert len({y.tobytes() for y, _ in results[0]}) == 6


def test_captured_updates_have_the_masks_of_samples(library):
    class Model(mpchain.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.attention = L.MultiHeadAttention(16, 2, 0.4)

        def forward(self, x):
            return F.mean(F.cast(self.attention(x), "f") ** 2)

    x = _send("@cupy:0", _draw(4, 6, 16))[0]

    def trained(is_captured):
        np.random.seed(0)
        with mpchain.using_config("dtype", mpchain.mixed16):
            model = Model()
            model.to_device("@cupy:0")
            comm = mpchain.create_communicator("dummy")
            optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(0.1), comm)
            optimizer.setup(model)
            optimizer.use_fp32_update()
            optimizer.set_loss_scale(8.0)
            update = lambda x: optimizer.update(lambda: model(x))
            run = mpchain.capture(update) if is_captured else update
            for _ in range(6):
                with comm.batch(len(x)):
                    run(x)
        if is_captured:
            assert run.reason is None
        assert {tag for tag, _ in library.executed} >= {"SDPA", "SDPA_BWD"}
        return [param.array.get() for _, param in sorted(model.namedparams())]

    for one, other in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(one, other, 1e-3, 1e-3)


def test_explain_names_the_plan(library):
    arrays = _send("@cupy:0", *_values())
    for has_seed in (False, True):
        dropout = kernels.Dropout(0.1, has_seed)
        text = kernels.explain("attention", *arrays, 1.0, False, None, dropout)
        assert text.splitlines()[0].startswith("attention: cudnn: runs by plan")
