"""Tests the registry of kernels, and every kernel against the specification."""

import itertools
import types

import numpy as np
import pytest

import mpchain
from mpchain import kernels
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import compiler, onednn, onednn_library
from mpchain.kernels.operation import Operation
from mpchain.testing.kernel_cases import CASES, DTYPES, LAYOUTS, WINDOWS
from mpchain.testing.kernel_cases import arguments as _arguments
from tests.kernels.needs import needs_numba, needs_onednn

pytestmark = pytest.mark.slow

# The registry.


@pytest.fixture
def total():
    @Operation
    def total(*values):
        return "reference"

    return total


def _add(total, library, refuse=None):
    total.kernel(library, refuse)(lambda *values: library)


def test_vendors_come_before_our_own_and_these_before_the_reference(total):
    for library in ("numba_cpu", "onednn", "numpy_cpu", "cudnn"):
        _add(total, library)
    order = [kernel.library for kernel in total.kernels]
    assert order == ["onednn", "cudnn", "numba_cpu", "numpy_cpu", "reference"]
    assert total(0) == "onednn"


def test_the_configuration_goes_first(total):
    for library in ("numpy_cpu", "onednn"):
        _add(total, library)
    with mpchain.using_config("kernels", ("reference", "absent", "numpy_cpu")):
        order = [kernel.library for kernel in total.kernels]
        assert order == ["reference", "numpy_cpu", "onednn"]
        assert total(0) == "reference"
    assert total(0) == "onednn"


def test_the_first_that_does_not_refuse_computes(total):
    _add(total, "numpy_cpu", lambda n: "odd" if n % 2 else None)
    _add(total, "onednn", lambda n: "not a large number" if n < 10 else None)
    assert [total(n) for n in (1, 2, 10)] == ["reference", "numpy_cpu", "onednn"]
    assert total.select(2).library == "numpy_cpu"
    with mpchain.using_config("kernels", ("onednn",)):
        assert total(1) == "reference"


def test_explain_says_which_runs_and_why(total):
    _add(total, "numpy_cpu")
    _add(total, "onednn", lambda n: "not a large number" if n < 10 else None)
    assert total.explain(1) == (
        "total: onednn: no: not a large number\n"
        "total: numpy_cpu: runs\n"
        "total: reference: not needed"
    )
    assert total.explain(10).splitlines()[0] == "total: onednn: runs"


def test_an_operation_that_nobody_knows():
    with pytest.raises(LookupError, match=r"^kernels.explain: there is no operation 'tota1'"):
        kernels.explain("tota1", 1)


def test_every_operation_has_its_specification():
    for name, operation in kernels.operations.items():
        assert getattr(kernels, name) is operation and operation.__doc__
        entries = operation.kernels
        assert [k.library for k in entries].count("reference") == 1, name
        assert entries[-1].library == "reference" and entries[-1].refuse is None
        assert all(k.operation == name and k.compute.__doc__ for k in entries)


EVERY_CASE = [
    pytest.param(operation, name, id=f"{operation}-{name.replace(' ', '_')}")
    for operation, cases in CASES.items()
    for name in cases
]


def _as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def test_every_operation_has_cases():
    # Random words are not a function of float arrays; tests/test_random.py tests them.
    assert set(kernels.operations) - {"random_words"} == set(CASES)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("operation, name", EVERY_CASE)
def test_every_kernel_agrees_with_the_reference(operation, name, dtype, device):
    tolerance = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-12}[dtype]
    for layout in LAYOUTS:
        arguments = _arguments(operation, name, dtype, layout, mpchain.get_device(device).send)
        copies = [x.copy() if hasattr(x, "copy") else x for x in arguments]
        *others, reference = kernels.operations[operation].kernels
        taking = [kernel for kernel in others if kernel.refuse(*arguments) is None]
        if not taking and layout != "contiguous":
            continue
        expected = _as_tuple(reference.compute(*arguments))
        assert expected[0].dtype == dtype
        for kernel in taking:
            results = _as_tuple(kernel.compute(*arguments))
            for result, right in zip(results, expected, strict=True):
                assert result.dtype == right.dtype and result.shape == right.shape
                result, right = mpchain.cuda.to_cpu((result, right))
                # A sum is as exact as its largest term.
                largest = np.abs(right[np.isfinite(right)]).max(initial=0)
                atol = tolerance * max(1, largest)
                np.testing.assert_allclose(result, right, tolerance, atol, str(kernel))
        for argument, copy in zip(arguments, copies):
            if hasattr(argument, "shape"):
                assert bool((argument == copy).all()), "a kernel changed its argument"


def test_every_kernel_takes_some_of_the_cases():
    for operation, cases in CASES.items():
        for kernel in kernels.operations[operation].kernels[:-1]:
            # With several threads, NumPy's BLAS multiplies stacks of matrices; some loops take over
            # from the reference after a while. test_blas.py and test_small_arrays.py test this.
            if kernel.library.startswith(("cu", "blas", "numba_small")) or (
                kernel.library == "onednn" and onednn.why_absent()
            ):
                continue
            taken = [
                (name, dtype.__name__)
                for name, dtype in itertools.product(cases, DTYPES)
                if kernel.refuse(*_arguments(operation, name, dtype)) is None
            ]
            refused = [
                name for name in cases if kernel.refuse(*_arguments(operation, name)) is not None
            ]
            assert taken and refused, kernel


def test_every_kernel_finds_the_same_of_equal_and_of_unusual_maxima():
    (x, window) = _arguments("max_windows", "many windows, padded", np.float32)
    x = np.round(x)
    for i, value in enumerate((np.nan, np.inf, -np.inf)):
        x[np.random.default_rng(i).random(x.shape) < 0.4] = value
    *others, reference = kernels.operations["max_windows"].kernels
    expected = reference.compute(x, window)
    taking = [k for k in others if k.refuse(x, window) is None]
    assert taking or compiler.load_numba() is None
    for kernel in taking:
        for result, right in zip(kernel.compute(x, window), expected, strict=True):
            np.testing.assert_array_equal(result, right, str(kernel))


# oneDNN.


def _refusal(operation, name, **options):
    (kernel,) = (k for k in kernels.operations[operation].kernels if k.library == "onednn")
    return kernel.refuse(*_arguments(operation, name, **options))


@pytest.mark.parametrize(
    "operation", ["convolution_output", "convolution_input", "convolution_filter"]
)
def test_what_onednn_takes(operation, load_onednn):
    library = types.SimpleNamespace(threads=1)
    load_onednn(library)
    float32 = {"dtype": np.float32}
    assert _refusal(operation, "large", **float32) is None
    assert _refusal(operation, "large, depthwise", **float32) is None
    assert _refusal(operation, "large") == "not NumPy arrays of float32"
    not_worth_it = "not worth it: NumPy is as fast"
    assert _refusal(operation, "grouped", **float32) == not_worth_it
    few_pixels = not_worth_it if operation == "convolution_filter" else None
    assert _refusal(operation, "many channels", **float32) == few_pixels
    assert _refusal(operation, "no samples", **float32) == "an array without elements"
    library.threads = 2
    for name in ("large", "large, depthwise"):
        assert _refusal(operation, name, **float32) is None
    assert _refusal(operation, "grouped", **float32) == not_worth_it
    with thresholds.using(shared=0):
        for name in ("grouped", "many channels"):
            assert _refusal(operation, name, **float32) is None
    for name, value in (("autotune", True), ("kernels", ("numpy_cpu", "onednn"))):
        with mpchain.using_config(name, value):
            assert _refusal(operation, "large", **float32) is None
            assert _refusal(operation, "grouped", **float32) is None
    load_onednn("gone")
    assert _refusal(operation, "large", **float32) == "gone"


@pytest.mark.parametrize("operation", ["convolution_output", "convolution_input"])
def test_pointwise_convolutions_of_many_channels(operation):
    def runs(name):
        return kernels.operations[operation].select(*_arguments(operation, name)).library

    assert runs("pointwise") == "numpy_cpu"
    assert runs("many channels pointwise") == "reference"  # one product computes all samples


@pytest.mark.parametrize("operation", ["batch_normalization", "batch_normalization_gradient"])
def test_what_is_compiled(operation, request):
    def why_not(name):
        kernel = next(k for k in kernels.operations[operation].kernels if k.library == "numba_cpu")
        return kernel.refuse(*_arguments(operation, name))

    assert why_not("images") == "too small to compile for"
    assert why_not("matrix") == "not over all axes but the second"
    request.getfixturevalue("without_numba")
    reason = "numba is not installed (pip install 'mpchain[cpu]') or NUMBA_DISABLE_JIT is set"
    assert why_not("many channels") == reason


def test_a_library_of_another_version_is_not_used(tmp_path, monkeypatch, environment_at):
    (tmp_path / "lib").mkdir()
    environment_at(tmp_path)
    monkeypatch.setattr("site.getuserbase", lambda: str(tmp_path / "user"))
    assert "is not installed (pip install 'mpchain[cpu]')" in onednn_library.load.__wrapped__()
    (tmp_path / "lib/libdnnl.so.3").write_bytes(b"nonsense")
    assert "libdnnl.so.3 cannot be used:" in onednn_library.load.__wrapped__()


@needs_onednn
@pytest.mark.parametrize("name", WINDOWS)
def test_onednn_computes_every_geometry(name):
    for operation in ("convolution_output", "convolution_input", "convolution_filter"):
        arguments = _arguments(operation, name, np.float32)
        if 0 in arguments[0].shape:
            continue
        (kernel,) = (k for k in kernels.operations[operation].kernels if k.library == "onednn")
        right = kernels.operations[operation].kernels[-1].compute(*arguments)
        for _ in range(2):  # the second time, the primitive exists
            result = kernel.compute(*arguments)
            atol = 1e-5 * max(1, np.abs(right).max())
            np.testing.assert_allclose(result, right, 1e-5, atol)


@needs_onednn
def test_second_derivatives_through_onednn():
    x, W, window = _arguments("convolution_output", "large, grouped, strided", np.float32)
    options = {"stride": window.stride, "pad": window.pad, "groups": window.groups}

    def derivatives():
        a, b = mpchain.Variable(x), mpchain.Variable(W)
        y = mpchain.functions.convolution_2d(a, b, **options)
        gx, gW = mpchain.grad([y * y], [a, b], enable_double_backprop=True)
        second = mpchain.grad([mpchain.functions.sum(gx * gx) + gW[0, 0, 0, 0]], [a, b])
        return [v.array for v in (y, gx, gW, *second)]

    found = []
    for name in ("onednn", "reference"):
        with mpchain.using_config("kernels", (name,)):
            found.append(derivatives())
    for result, right in zip(*found, strict=True):
        np.testing.assert_allclose(result, right, 1e-4, 1e-5 * np.abs(right).max())


# Choosing by measurement.


def test_autotune_measures_once_and_takes_the_fastest(clock):
    calls = []

    @Operation
    def total(x):
        calls.append("quick")
        clock.now += 1

    @total.kernel("onednn")
    def slow(x):
        calls.append("slow")
        clock.now += 2

    x = np.zeros((2, 3))
    assert total.select(x).library == "onednn"
    with mpchain.using_config("autotune", True):
        for _ in range(3):
            assert total.select(x).library == "reference"
        assert calls == ["slow", "slow", "quick", "quick"]
        assert total.select(x.astype(np.float32)).library == "reference"
        assert len(calls) == 8
        # Without an array, there is nothing to measure.
        assert total.select(None).library == "onednn"


# The predicates of our own kernels.


def test_what_the_pointwise_kernels_take():
    x, W, window = _arguments("convolution_output", "pointwise")
    assert kernels.convolution_output.select(x, W, window).library == "numpy_cpu"
    for name in ("2d", "pointwise strided", "pointwise padded", "pointwise grouped"):
        explained = kernels.explain("convolution_output", *_arguments("convolution_output", name))
        assert "numpy_cpu: no: not a pointwise convolution" in explained
    for other in (W.astype(np.float32), W.astype(np.float16)):
        explained = kernels.explain("convolution_output", x, other, window)
        rule = "not arrays of the sizes of the window and of one dtype"
        assert f"numpy_cpu: no: {rule}" in explained
    explained = kernels.explain("convolution_input", None, W, window)
    assert "numpy_cpu: no: not NumPy arrays of float32 or float64" in explained


# Each row breaks the contract of an operation: the case, the position of an argument, and the wrong
# argument.
BROKEN = [
    ("linear", "few rows", 2, lambda b: b[:-1]),
    ("linear", "few rows", 2, lambda b: b.astype(np.float64)),
    ("linear", "few rows", 1, lambda W: W[:, :-1]),
    ("product", "many rows", 1, lambda b: b[:-1]),
    ("product", "many rows", 1, lambda b: b.astype(np.float64)),
    ("sum_rows", "many", 1, lambda ids: ids[:, :-1]),
    ("concatenate", "columns", 2, lambda x: x[:-1]),
    ("softmax", "matrix", 1, lambda axis: 2),
    ("softmax", "many rows", 1, lambda axis: 2),
    ("softmax_gradient", "matrix", 1, lambda y: y[:-1]),
    ("attention", "heads", 2, lambda value: value[:, :, :-1]),
    ("attention_gradient", "heads", 5, lambda log_sums: log_sums[:, :, :-1]),
    ("batch_normalization", "many channels", 1, lambda gamma: gamma[:, :1]),
    ("batch_normalization", "many channels", 2, lambda beta: beta[:, :1]),
    ("batch_normalization_gradient", "many channels", 3, lambda mean: mean[:, :1]),
    ("sample_normalization", "rows", 2, lambda beta: beta[:1]),
    ("sample_normalization_gradient", "rows", 3, lambda mean: mean[:1]),
    ("rms_normalization_gradient", "rows", 3, lambda inverse: inverse[:1]),
    ("convolution_output", "large", 1, lambda W: W[:, :-1]),
    ("convolution_output", "large", 1, lambda W: W[..., :-1]),
    ("convolution_with_bias", "large", 2, lambda b: b[:1]),
    ("convolution_with_bias", "large pointwise", 2, lambda b: b[:1]),
    ("convolution_with_bias", "large, three taps", 2, lambda b: b.astype(np.float64)),
    ("convolution_input", "large", 0, lambda y: y[..., :-1]),
    ("convolution_filter", "large", 1, lambda y: y[:-1]),
    ("max_windows", "many windows", 0, lambda x: x[..., :-1]),
    ("take_from_windows", "many windows", 1, lambda places: places[:-1]),
    ("place_in_windows", "many windows", 1, lambda places: places[:-1]),
    ("fold_windows", "2d", 0, lambda y: y[:, :, :-1]),
    ("drop", "added", 1, lambda h: h[:-1]),
]


@pytest.mark.parametrize("operation, name, place, change", BROKEN)
def test_what_breaks_a_contract_is_left_to_the_reference(operation, name, place, change, device):
    arguments = _arguments(operation, name, np.float32, send=mpchain.get_device(device).send)
    *others, reference = kernels.operations[operation].kernels
    arguments[place] = change(arguments[place])
    assert all(kernel.refuse(*arguments) is not None for kernel in others)
    try:
        expected = reference.compute(*arguments)
    except Exception as error:
        with pytest.raises(type(error)):
            kernels.operations[operation](*arguments)
        return
    results = kernels.operations[operation](*arguments)
    for result, right in zip(_as_tuple(results), _as_tuple(expected), strict=True):
        np.testing.assert_array_equal(*mpchain.cuda.to_cpu((result, right)))


@pytest.mark.parametrize("ids", [[-5], [4], [3, -4, 5]])
def test_ids_that_do_not_exist_raise_the_error_of_the_reference(ids):
    rows, ids = np.ones((1 << 16, 1), np.float32), np.resize(ids, 1 << 16)
    with pytest.raises(IndexError, match="out of bounds"):
        kernels.sum_rows(rows, ids, 4)


def test_mixed_dtypes_give_that_of_the_first_operand():
    for operation in ("convolution_output", "convolution_input", "convolution_filter"):
        a, b, window = _arguments(operation, "2d")
        for first, second in itertools.product(DTYPES, DTYPES):
            result = kernels.operations[operation](a.astype(first), b.astype(second), window)
            assert result.dtype == first


def test_loops_take_read_only_arrays_without_compiling_again():
    x = np.ones(5)
    x.flags.writeable = False
    alias = compiler.as_writable(x)
    assert alias.flags.writeable and np.shares_memory(alias, x) and not x.flags.writeable
    y = np.ones(5)
    assert compiler.as_writable(y) is y
    spread = np.broadcast_to(np.ones(1), (3, 2))
    assert compiler.as_writable(spread).strides == spread.strides


@needs_numba
def test_a_compiled_step_refuses_read_only_parameters():
    param = mpchain.Parameter(np.ones(5, np.float32))
    link = mpchain.Link()
    with link.init_scope():
        link.W = param
    optimizer = mpchain.optimizers.MomentumSGD(0.1).setup(link)
    with thresholds.using(compiled_step=0):
        for _ in range(2):
            param.grad = np.ones(5, np.float32)
            optimizer.update()
        param.array.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            optimizer.update()
