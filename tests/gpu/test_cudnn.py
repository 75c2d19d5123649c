"""Tests cuDNN's kernels on its double, which runs graphs node by node on the given memory."""

import contextlib
import functools
import sys
import weakref

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import kernels
from mpchain.kernels.gpu import cudnn
from mpchain.testing.kernel_cases import CASES
from tests.gpu.test_graphs import Capturing

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

CONVOLUTIONS = ["convolution_output", "convolution_input", "convolution_filter"]
CONVOLUTIONS += ["convolution_with_bias"]


def _misaligned(x):
    whole = mpchain.get_array_module(x).empty(x.size + 1, x.dtype)
    view = whole[1:].reshape(x.shape)
    view[...] = x
    return view


def _channels_last(x):
    if x.ndim < 3:
        return x
    xp = mpchain.get_array_module(x)
    return xp.moveaxis(xp.ascontiguousarray(xp.moveaxis(x, 1, -1)), -1, 1)


LAYOUTS = {
    "contiguous": lambda x: x,
    "reversed": lambda x: x[::-1].copy()[::-1],
    "misaligned": _misaligned,
    "channels last": _channels_last,
    "fortran": lambda x: x.T.copy().T,
}
TOLERANCE = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-12}


def _arguments(operation, name, dtype=np.float32, layout="contiguous"):
    """Returns the arguments of a case, on the GPU."""
    return _on_gpu(CASES[operation][name](), dtype, layout)


def _on_gpu(arguments, dtype=np.float32, layout="contiguous"):
    send = mpchain.get_device("@cupy:0").send
    return [
        LAYOUTS[layout](send(x.astype(dtype))) if isinstance(x, np.ndarray) else x
        for x in arguments
    ]


def _kernel(operation):
    return next(k for k in kernels.operations[operation].kernels if k.library == "cudnn")


def _compute(operation, arguments):
    kernel = _kernel(operation)
    reason = kernel.refuse(*arguments)
    assert reason is None, reason
    return kernel.compute(*arguments)


def _right(operation, arguments):
    """Returns the results of the reference in double precision."""
    wide = [x.get().astype(float) if hasattr(x, "get") else x for x in arguments]
    return kernels.operations[operation].kernels[-1].compute(*wide)


def _check(operation, arguments, dtype):
    results, rights = _compute(operation, arguments), _right(operation, arguments)
    if not isinstance(results, tuple):
        results, rights = (results,), (rights,)
    for i, (result, right) in enumerate(zip(results, rights, strict=True)):
        expected = dtype if i == 0 else np.promote_types(dtype, np.float32)
        assert result.dtype == expected and result.shape == right.shape
        atol = TOLERANCE[dtype] * max(1, np.abs(right).max())
        np.testing.assert_allclose(result.get(), right, TOLERANCE[dtype], atol)
    return results[0]


# Convolutions.


@pytest.mark.parametrize(
    "layout, dtype",
    [("contiguous", np.float16), ("contiguous", np.float64), *((x, np.float32) for x in LAYOUTS)],
)
@pytest.mark.parametrize("operation", CONVOLUTIONS)
def test_every_geometry(operation, layout, dtype, library):
    for name in CASES[operation]:
        arguments = _arguments(operation, name, dtype, layout)
        if name.startswith("no samples"):
            assert "cudnn: no: an array without elements" in kernels.explain(operation, *arguments)
        else:
            _check(operation, arguments, dtype)


@pytest.mark.parametrize("operation", CONVOLUTIONS)
def test_channels_last_stay_last(operation, library):
    arguments = _arguments(operation, "large", layout="channels last")
    result = _check(operation, arguments, np.float32)
    assert mpchain.get_array_module(result).moveaxis(result, 1, -1).flags.c_contiguous
    first, *others = arguments
    mixed = _check(operation, [LAYOUTS["fortran"](first), *others], np.float32)
    assert mixed.flags.c_contiguous


def test_a_convolution_and_its_bias_are_one_graph(library, double):
    x, W, b = (np.random.randn(*s).astype("f") for s in ((2, 4, 9, 9), (6, 4, 3, 3), (6,)))
    x, W, b = (mpchain.Variable(mpchain.get_device("@cupy:0").send(v)) for v in (x, W, b))
    double.reset()
    F.convolution_2d(x, W, b, pad=1)
    assert [tags for tags, _ in library.executed] == ["CONV_FPROP+POINTWISE"]
    assert double.launches.total() == 1


def test_plans_are_made_once_for_equal_arguments(library):
    operation = "convolution_output"
    for _ in range(2):
        for name in ("2d", "grouped"):
            _compute(operation, _arguments(operation, name))
    assert cudnn.cached_plan.cache_info().misses == 2
    _compute(operation, _arguments(operation, "2d", np.float64))
    _compute(operation, _arguments(operation, "2d", layout="channels last"))
    with mpchain.using_config("cudnn_deterministic", True):
        _compute(operation, _arguments(operation, "2d"))
    assert cudnn.cached_plan.cache_info().misses == 5


def _plan_of_rows(n):
    request = cudnn.linear_request(n, 1, 1, "float16", False)
    return cudnn.plan_of(request, mpchain.cuda.Device())


def test_plans_that_were_used_least_recently_are_forgotten(library):
    plans = [weakref.ref(_plan_of_rows(n + 1)) for n in range(cudnn.MOST_PLANS)]
    assert _plan_of_rows(1) is plans[0]()
    for n in range(cudnn.MOST_PLANS, cudnn.MOST_PLANS + 8):
        _plan_of_rows(n + 1)
    assert cudnn.cached_plan.cache_info().currsize == cudnn.MOST_PLANS
    assert [n for n, plan in enumerate(plans) if plan() is None] == [*range(1, 9)]
    made = cudnn.cached_plan.cache_info().misses
    assert _plan_of_rows(1) is plans[0]() and cudnn.cached_plan.cache_info().misses == made
    _plan_of_rows(2)
    assert cudnn.cached_plan.cache_info().misses == made + 1


@pytest.fixture
def two_plans(library, monkeypatch):
    """Limits the cache to two plans."""
    made = functools.lru_cache(maxsize=2)(cudnn.cached_plan.__wrapped__)
    monkeypatch.setattr(cudnn, "cached_plan", made)
    return made


def test_memory_of_forgotten_plans_serves_their_stream_again(two_plans, library, double):
    import cupy

    cases = [_arguments("convolution_output", "2d", dtype) for dtype in TOLERANCE]
    rights = [_right("convolution_output", case) for case in cases]
    pool, results = cupy.get_default_memory_pool(), []
    used = pool.used_bytes()
    for stream in [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]:
        stream.wait_event(cupy.cuda.Stream.null.record())
        with stream:
            for _ in range(2):
                results += [_compute("convolution_output", case) for case in cases]
        stream.synchronize()
    assert two_plans.cache_info().misses == 12 and two_plans.cache_info().currsize == 2
    # No workspace is in use; a stream gets freed memory again without waiting.
    assert pool.used_bytes() - used == sum(y.nbytes for y in results)
    for y, right, dtype in zip(results, rights * 4, [*TOLERANCE] * 4, strict=True):
        np.testing.assert_allclose(y.get(), right, TOLERANCE[dtype], 10 * TOLERANCE[dtype])
    assert not double.faults


def test_graphs_keep_the_plans_that_they_launch(two_plans, library, double):
    import cupy

    cases = [_arguments("convolution_output", "2d", dtype) for dtype in TOLERANCE]
    with Capturing(cupy) as capturing:
        ys = [_compute("convolution_output", case) for case in cases]
    capturing.graph.launch()
    for y, case in zip(ys, cases, strict=True):
        tolerance = TOLERANCE[y.dtype.type]
        right = _right("convolution_output", case)
        np.testing.assert_allclose(y.get(), right, tolerance, 10 * tolerance)
    capturing.kept.clear()
    with pytest.raises(RuntimeError, match="a plan that is gone"):
        capturing.graph.launch()


def test_captured_steps_keep_the_plans_that_they_launch(library):
    x, W, _ = _arguments("convolution_output", "2d")
    forward = mpchain.capture(lambda x: F.convolution_2d(x, W, pad=1).array)
    for _ in range(4):
        y = forward(x)
        cudnn.cached_plan.cache_clear()
    assert forward.reason is None
    np.testing.assert_array_equal(y.get(), F.convolution_2d(x, W, pad=1).array.get())


@pytest.mark.parametrize(
    "dtype, options, plan",
    [
        (np.float16, {}, "fast"),
        (np.float16, {"cudnn_deterministic": True}, "exact"),
        (np.float16, {"use_cudnn_tensor_core": "never"}, "exact"),
        (np.float32, {}, "fast"),  # TF32 is the default for convolutions
        (np.float32, {"use_cudnn_tensor_core": "never"}, "exact"),
        (np.float32, {"use_cudnn_tensor_core": "always"}, "fast"),
        (np.float64, {}, "exact"),
    ],
)
def test_the_configuration_chooses_the_plan(dtype, options, plan, library):
    arguments = _arguments("convolution_output", "large", dtype)
    with contextlib.ExitStack() as stack:
        for name, value in options.items():
            stack.enter_context(mpchain.using_config(name, value))
        _compute("convolution_output", arguments)
    assert library.executed == [("CONV_FPROP", plan)]


@pytest.mark.parametrize("cores, right", [("auto", "fast"), ("never", "exact")])
def test_engines_of_the_front_end_are_taken_only_if_asked_for(cores, right, library, monkeypatch):
    """Settings of precision do not apply to these engines, which declare no numerical notes."""
    library.python_engines = ["conv_sm100[TILE=128]", "conv_sm107"]
    arguments = _arguments("convolution_output", "large", np.float16)
    with mpchain.using_config("use_cudnn_tensor_core", cores):
        explained = kernels.explain("convolution_output", *arguments)
        assert f"cudnn: runs by plan {right}\n" in explained
        _compute("convolution_output", arguments)
        assert library.executed == [("CONV_FPROP", right)]
        with mpchain.using_config("kernels", ("cudnn_python",)):
            explained = kernels.explain("convolution_output", *arguments)
    assert "cudnn: runs by plan conv_sm100[TILE=128]\n" in explained


def test_no_engine_of_the_front_end_computes_gradients_of_attention(library, monkeypatch):
    library.python_engines = ["sdpa_bwd_sm100"]
    arguments = _arguments("attention_gradient", "heads", np.float16)
    with mpchain.using_config("cudnn_deterministic", True):
        _compute("attention_gradient", arguments)
    assert library.executed == [("SDPA_BWD", "exact")]


def test_sums_of_half_precision_are_widened(library):
    """Another forward kernel computed these sums in half precision; cuDNN would read past their
    end."""
    arguments = _arguments("attention_gradient", "heads", np.float16)
    assert arguments[5].dtype == np.float16
    for found, right in zip(
        _compute("attention_gradient", arguments), _right("attention_gradient", arguments)
    ):
        np.testing.assert_allclose(found.get(), right, 0.02, 0.02 * np.abs(right).max())


def test_an_engine_of_the_front_end_that_cannot_be_barred_is_refused(library, monkeypatch):
    library.python_engines = ["conv_sm100"]
    own = {"deselect_engines": lambda self, names: None}
    library.pygraph = type("pygraph", (library.pygraph,), own)
    reason = _kernel("convolution_output").refuse(*_arguments("convolution_output", "large"))
    assert reason == (
        "cuDNN has no plan: the front end takes conv_sm100, which declares no numerical notes"
    )


def test_the_workspace_is_limited(library, monkeypatch):
    arguments = _arguments("convolution_output", "large", np.float16)
    library.WORKSPACE = 1 << 20
    with mpchain.using_config("cudnn_deterministic", True):
        assert _kernel("convolution_output").refuse(*arguments) is None
        before = mpchain.cuda.get_max_workspace_size()
        mpchain.cuda.set_max_workspace_size(1 << 10)
        reason = _kernel("convolution_output").refuse(*arguments)
        mpchain.cuda.set_max_workspace_size(before)
    assert reason == "cuDNN has no plan: No execution plans support the graph."


def test_a_plan_is_made_to_see_whether_cudnn_works(library, monkeypatch):
    assert cudnn.why_no_plan() is None
    cudnn.cached_plan.cache_clear()
    library.WORKSPACE = 1 << 30
    with mpchain.using_config("cudnn_deterministic", True):
        reason = cudnn.why_no_plan()
    assert reason == "cuDNN has no plan: No execution plans support the graph."
    monkeypatch.setitem(sys.modules, "cudnn", None)
    cudnn.load_library.cache_clear()
    assert cudnn.why_no_plan().startswith("cuDNN is not installed (")


def test_what_is_refused(library, monkeypatch):
    x, W, window = _arguments("convolution_output", "2d")
    refuse = _kernel("convolution_output").refuse
    dtypes = "float16 or bfloat16 or float32 or float64"
    assert refuse(x.get(), W, window) == f"not CuPy arrays of {dtypes}"
    rule = "not arrays of the sizes of the window and of one dtype"
    assert refuse(x, W.astype("d"), window) == rule
    longer = {name: (*sizes, 1, 1) for name, sizes in window._asdict().items() if name != "groups"}
    many = x[..., None, None], W[..., None, None], window._replace(**longer)
    assert refuse(*many) == "more than three spatial axes"
    with mpchain.using_config("use_cudnn", "never"):
        assert refuse(x, W, window) == "config.use_cudnn is 'never'"
    library.create_handle = lambda: 1 / 0
    cudnn.load_library.cache_clear()
    assert refuse(x, W, window) == "cuDNN cannot be used: division by zero"
    monkeypatch.setitem(sys.modules, "cudnn", None)
    cudnn.load_library.cache_clear()
    assert refuse(x, W, window).startswith("cuDNN is not installed (")
    assert kernels.convolution_output.select(x, W, window).library == "cuda_windows"


# Normalizations.

NORMALIZATIONS = [name for name in CASES if "normalization" in name]


@pytest.fixture
def _named():
    with mpchain.using_config("kernels", ("cudnn",)):
        yield


def _batch(of_gradient, *shape):
    """Returns the arguments of a batch normalization of x (N, C, ...), or its gradient."""
    axis, kept = (0, *range(2, len(shape))), (1, shape[1], *[1] * (len(shape) - 2))
    x, g = np.random.randn(*shape) + 1, np.random.randn(*shape)
    a, b, c = (np.abs(np.random.randn(*kept)) + 0.5 for _ in range(3))
    return (g, x, a, b, c, axis) if of_gradient else (x, a, b, axis, 1e-3)


@pytest.mark.parametrize("layout", ["contiguous", "reversed", "misaligned", "channels last"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("operation", NORMALIZATIONS[:2])
def test_batch_normalization(operation, dtype, layout, library, _named):
    for shape in ((4, 8, 3, 5), (2, 16, 3, 2, 3), (5, 8), (3, 8, 7)):
        arguments = _on_gpu(_batch(operation.endswith("gradient"), *shape), dtype, layout)
        _check(operation, arguments, dtype)


@pytest.mark.parametrize("layout", ["contiguous", "reversed", "misaligned"])
@pytest.mark.parametrize("operation", NORMALIZATIONS[2:])
def test_layer_and_rms_normalization(operation, layout, library, _named):
    for name in ("rows", "long rows", "many rows", "sequences", "images"):
        _check(operation, _arguments(operation, name, layout=layout), np.float32)


def test_rms_normalization_in_networks(library, _named):
    def derivatives(device):
        draw, send = np.random.RandomState(0), mpchain.get_device(device).send
        x, gamma = (mpchain.Variable(send(draw.randn(*s).astype("f"))) for s in ((3, 4, 8), (8,)))
        y = F.rms_normalization(x, gamma)
        first = mpchain.grad([y * y], [x, gamma], enable_double_backprop=True)
        second = mpchain.grad([sum(F.sum(g * g) for g in first)], [x, gamma])
        F.sum(y * y).backward()
        return [mpchain.cuda.to_cpu(v) for v in (y.array, x.grad, gamma.grad)] + [
            mpchain.cuda.to_cpu(v.array) for v in (*first, *second)
        ]

    on_gpu = derivatives("@cupy:0")
    assert {tag for tag, _ in library.executed} == {"RMS_NORM", "RMS_NORM_BPROP"}
    for result, right in zip(on_gpu, derivatives("@numpy"), strict=True):
        np.testing.assert_allclose(result, right, 1e-4, 1e-5 * np.abs(right).max())


@pytest.mark.parametrize("operation", NORMALIZATIONS)
def test_which_normalizations_are_refused(operation, library):
    refuse = _kernel(operation).refuse
    is_batch = operation.startswith("batch")
    arguments = _arguments(operation, "images" if is_batch else "rows")
    rule = "config.kernels does not name cudnn: other kernels need no time to be compiled"
    assert refuse(*arguments) == rule
    with mpchain.using_config("kernels", ("cudnn",)):
        if is_batch:
            assert "this number of channels" in refuse(*arguments)
            other = _arguments(operation, "other axes")
            assert refuse(*other) == "not over all axes but the second"
        else:
            rule = "not a factor for each element of a row"
            assert refuse(*_arguments(operation, "one gamma")) == rule
            assert refuse(*_arguments(operation, "groups")) in (rule, "not over trailing axes")
        assert refuse(*_arguments(operation, "no samples")) == "an array without elements"
        wide = refuse(*_arguments(operation, "matrix" if is_batch else "rows", np.float64))
        assert "double precision" in wide or wide == "not CuPy arrays of float32"


# Products.


@pytest.mark.parametrize("layout", ["contiguous", "fortran", "reversed", "misaligned"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear(has_bias, layout, library, _named):
    for shapes in (((3, 5), (7, 5), (7,)), ((1, 1), (1, 1), (1,)), ((5, 100), (60, 100), (60,))):
        arguments = _on_gpu([np.random.randn(*shape) for shape in shapes], np.float16, layout)
        _check("linear", [*arguments[:2], arguments[2] if has_bias else None], np.float16)
    assert {tags for tags, _ in library.executed} == {"MATMUL" + "+POINTWISE" * has_bias}


def test_which_products_are_refused(library, _named):
    x, W, b = _arguments("linear", "bias", np.float16)
    refuse = _kernel("linear").refuse
    assert refuse(x, W, b) is None
    rule = "not x (N, I), W (O, I), b (O,) or None, of one dtype"
    assert refuse(x.reshape(1, *x.shape), W, b) == rule
    single = [a.astype("f") for a in (x, W, b)]
    assert refuse(*single) == "cuDNN has no plan: No execution plans support the graph."
    with mpchain.using_config("use_cudnn_tensor_core", "always"):
        assert refuse(*single) is None
    with mpchain.using_config("kernels", ()):
        assert refuse(x, W, b).startswith("config.kernels does not name cudnn")


# Attention.

ATTENTION = ["attention", "attention_gradient"]


def _heads_inside(x):
    """Returns (B, heads, L, E) as a view of (B, L, heads, E)."""
    xp = mpchain.get_array_module(x)
    return xp.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def _part_of_several(x):
    """Returns a view of the first third of the heads, as with joint projections."""
    xp = mpchain.get_array_module(x)
    whole = xp.zeros((len(x), x.shape[2], 3 * x.shape[1], x.shape[3]), x.dtype)
    view = whole[:, :, : x.shape[1]].transpose(0, 2, 1, 3)
    view[...] = x
    return view


HEADS = {"heads inside": _heads_inside, "part of several": _part_of_several}


@pytest.mark.parametrize(
    "layout",
    ["contiguous", "misaligned", "fortran", "reversed", "heads inside", "part of several"],
)
@pytest.mark.parametrize("operation", ATTENTION)
def test_attention(operation, layout, library, double):
    for name in CASES[operation]:
        arguments = _arguments(operation, name, np.float16)
        n = 3 if operation == "attention" else 5
        arguments[:n] = map({**LAYOUTS, **HEADS}[layout], arguments[:n])
        if n == 5:
            arguments[5] = arguments[5].astype("f")
        if name.startswith("one of each"):
            assert _kernel(operation).refuse(*arguments).startswith("one query")
            continue
        if name.startswith("odd"):
            refused = _kernel(operation).refuse(*arguments)
            assert refused == "cuDNN has no plan: hidden_dim should be multiple of 8"
            continue
        if n == 5:  # the gradient assumes that y and the sums belong to the other arguments
            arguments[4:6] = map(mpchain.get_device("@cupy:0").send, _forward(arguments))
        double.reset()
        results, rights = _compute(operation, arguments), _right(operation, arguments)
        if layout in ("contiguous", *HEADS):
            assert not any(name in ("copy", "setitem") for name, _ in double.launches)
        for i, (result, right) in enumerate(zip(results, rights, strict=True)):
            assert result.shape == right.shape
            assert result.dtype == (np.float32 if (n, i) == (3, 1) else np.float16)
            np.testing.assert_allclose(result.get(), right, 4e-3, 4e-3, err_msg=name)


def _forward(arguments):
    y, log_sums = _right("attention", (*arguments[1:4], *arguments[6:]))
    return y.astype(np.float16), log_sums.astype(np.float32)


@pytest.mark.parametrize("operation", ATTENTION)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_attention_of_other_precision_is_that_of_the_reference(operation, dtype, library):
    arguments = _arguments(operation, "heads", dtype)
    assert _kernel(operation).refuse(*arguments) == "not CuPy arrays of float16 or bfloat16"
    assert kernels.operations[operation].select(*arguments).library == "reference"


def test_attention_that_must_be_the_same_each_time_has_a_plan_of_its_own(library):
    arguments = _arguments("attention_gradient", "heads", np.float16)
    arguments[5] = arguments[5].astype("f")
    for value in (False, True):
        with mpchain.using_config("cudnn_deterministic", value):
            _compute("attention_gradient", arguments)
    assert library.executed == [("SDPA_BWD", "fast"), ("SDPA_BWD", "exact")]


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_in_networks(is_causal, library, double):
    shapes = (2, 3, 6, 8), (2, 3, 5, 8), (2, 3, 5, 16)
    values = [np.random.randn(*shape).astype(np.float16) for shape in shapes]

    def derivatives(device):
        send = mpchain.get_device(device).send
        variables = [mpchain.Variable(send(value)) for value in values]
        y = F.scaled_dot_product_attention(*variables, is_causal=is_causal)
        first = mpchain.grad([y * y], variables, enable_double_backprop=True)
        second = mpchain.grad([sum(F.sum(g * g) for g in first)], variables)
        return [mpchain.cuda.to_cpu(v.array).astype("f") for v in (y, *first, *second)]

    on_gpu = derivatives("@cupy:0")
    assert [tag for tag, _ in library.executed][:1] == ["SDPA"]
    for result, right in zip(on_gpu, derivatives("@numpy"), strict=True):
        np.testing.assert_allclose(result, right, 0.03, 0.03 * np.abs(right).max())
    library.executed.clear()
    send = mpchain.get_device("@cupy:0").send
    arrays = [send(value) for value in values]
    y = F.scaled_dot_product_attention(*map(mpchain.Variable, arrays), is_causal=is_causal)
    double.reset()
    y.grad = y.array
    y.backward()
    assert [tag for tag, _ in library.executed] == ["SDPA", "SDPA_BWD"]
    assert {name for name, _ in double.launches} <= {"cudnn", "copy"}


# In networks.


def test_chainers_questions(library, monkeypatch):
    assert mpchain.cuda.cudnn_enabled and mpchain.should_use_cudnn(">=auto")
    assert not mpchain.should_use_cudnn("==always")
    assert mpchain.should_use_cudnn_tensor_core(np.float16)
    assert not mpchain.should_use_cudnn_tensor_core(np.float32)
    monkeypatch.setitem(sys.modules, "cudnn", None)
    assert not mpchain.cuda.cudnn_enabled


def test_networks_use_it(library, double):
    x, W, b = (np.random.randn(*s).astype("f") for s in ((2, 4, 9, 9), (6, 4, 3, 3), (6,)))

    def derivatives(device):
        send = mpchain.get_device(device).send
        x_, W_, b_ = (mpchain.Variable(send(v)) for v in (x, W, b))
        y = F.convolution_2d(x_, W_, b_, pad=1, stride=2)
        gx, gW = mpchain.grad([y * y], [x_, W_], enable_double_backprop=True)
        second = mpchain.grad([F.sum(gx * gx) + F.sum(gW * gW)], [x_, W_])
        return [mpchain.cuda.to_cpu(v.array) for v in (y, gx, gW, *second)]

    double.reset()
    on_gpu = derivatives("@cupy:0")
    tags = {"CONV_FPROP+POINTWISE", "CONV_FPROP", "CONV_DGRAD", "CONV_WGRAD"}
    assert {tag for tag, _ in library.executed} == tags
    assert not any("unfold" in name for name, _ in double.launches)
    for result, right in zip(on_gpu, derivatives("@numpy"), strict=True):
        np.testing.assert_allclose(result, right, 1e-4, 1e-5 * np.abs(right).max())


def test_other_gpus_and_streams(library, double):
    import cupy

    operation = "convolution_output"
    x, W, window = _arguments(operation, "large")
    right = _right(operation, (x, W, window))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.wait_event(cupy.cuda.get_current_stream().null.record())
        y = _compute(operation, (x, W, window))
        stream.synchronize()
    np.testing.assert_allclose(y.get(), right, 1e-4, 1e-4)
    with cupy.cuda.Device(1):
        y = _compute(operation, (x.copy(), W.copy(), window))
        assert y.device.id == 1
        np.testing.assert_allclose(y.get(), right, 1e-4, 1e-4)
    assert cudnn.cached_plan.cache_info().misses == 2


def test_work_on_another_stream_has_no_order_with_the_arrays(library, double):
    """The double notices that no event orders cuDNN's work after that of the arrays' stream."""
    import cupy

    arguments = _arguments("convolution_output", "2d")
    with cupy.cuda.Stream(non_blocking=True), pytest.raises(RuntimeError, match="no order"):
        _compute("convolution_output", arguments)
    double.reset()
