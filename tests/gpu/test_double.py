"""Tests the double of CuPy: its refusals, its records and its results."""

import copy
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

from mpchain.testing import cupy_contract

pytestmark = pytest.mark.slow

FOLDER = pathlib.Path(__file__).parent
ROOT = FOLDER.parents[1]
SQUARE = 'extern "C" __global__ void square(const float* x, float* y, int n) {\n'
SQUARE += "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] * x[i]; }"
REVERSE = 'extern "C" __global__ void reverse(const float* x, float* y) {\n'
REVERSE += "__shared__ float s[32]; int t = threadIdx.x, b = blockIdx.x * blockDim.x;\n"
REVERSE += "s[t] = x[b + t]; __syncthreads(); y[b + t] = s[blockDim.x - 1 - t]; }"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def _environment():
    """Returns the variables of a process that finds the real CuPy, if it is installed."""
    doubles = str(FOLDER / "doubles")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p != doubles)}


@pytest.fixture
def cupy(request):
    if request.config.option.gpu != "double":
        pytest.skip("needs the double of CuPy: --gpu=double")
    import cupy

    yield cupy
    cupy.cuda.Device(0).use()


def test_the_double_in_a_process_of_its_own(request, tmp_path):
    if request.config.option.gpu == "double":
        pytest.skip("needs the real CuPy, but this process uses the double")
    command = [sys.executable, "-m", "pytest", "-q", "--gpu=double", "-m", "gpu"]
    command += ["-p", "no:cacheprovider", f"--rootdir={ROOT}", __file__]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "passed" in done.stdout


def test_contract_is_that_of_the_installed_cupy():
    environment = _environment()
    probe = [sys.executable, "-c", "import cupy, scipy; print(cupy.__version__)"]
    found = subprocess.run(
        probe, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if found.returncode:
        pytest.skip(f"needs the real CuPy and SciPy: {found.stderr.strip().splitlines()[-1]}")
    program = (
        "import json; from mpchain.testing import cupy_contract as c; print(json.dumps(c.read()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    installed = json.loads(done.stdout)
    assert installed == cupy_contract.known(), "run python -m mpchain.testing.cupy_contract"
    assert cupy_contract.differences(installed, cupy_contract.known()) == []


@pytest.mark.gpu
class TestRefusals:
    @pytest.mark.parametrize(
        "convert",
        [
            np.asarray,
            lambda x: np.float32(x.sum().__array__()),
            lambda x: np.zeros(3).__setitem__(slice(None), x),
        ],
    )
    def test_implicit_conversion_to_numpy(self, cupy, convert):
        with pytest.raises(TypeError, match="Implicit conversion to a NumPy array"):
            convert(cupy.ones(3))

    @pytest.mark.parametrize(
        "use",
        [
            lambda cupy, x, host: x + host,
            lambda cupy, x, host: host * x,
            lambda cupy, x, host: x.__iadd__(host),
            lambda cupy, x, host: cupy.add(x, host),
            lambda cupy, x, host: cupy.concatenate([x, host]),
            lambda cupy, x, host: cupy.where(x > 0, x, host),
            lambda cupy, x, host: x.dot(host),
            lambda cupy, x, host: x.__setitem__(slice(1, 3), host),
            lambda cupy, x, host: cupy.copyto(x, host),
            lambda cupy, x, host: cupy.add.at(x, cupy.arange(3), host),
            lambda cupy, x, host: cupy.sum([1.0, 2.0]),
            lambda cupy, x, host: cupy.exp([1.0, 2.0]),
        ],
    )
    def test_arrays_of_the_host(self, cupy, use):
        with pytest.raises(TypeError, match=r"Unsupported type|expected cupy\.ndarray"):
            use(cupy, cupy.ones(3), np.ones(3))

    def test_unknown_names(self, cupy):
        for owner, name in (
            (cupy, "vecdot_of_everything"),
            (cupy, "float128"),
            (cupy.ones(3), "itemset"),
            (cupy.random, "default_bits"),
            (cupy.linalg, "cond_of"),
            (cupy.cuda, "no_such_thing"),
        ):
            assert not hasattr(owner, name)

    @pytest.mark.parametrize(
        "use",
        [
            lambda cupy, x: x.max(initial=0),
            lambda cupy, x: cupy.max(x, initial=0),
            lambda cupy, x: x.sum(where=x > 0),
            lambda cupy, x: cupy.add(x, x, order="C"),
            lambda cupy, x: cupy.add(x, x, where=x > 0),
            lambda cupy, x: cupy.random.normal(0, 1, 3, float, 5),
            lambda cupy, x: cupy.linalg.inv(x, overwrite=True),
        ],
    )
    def test_unknown_parameters(self, cupy, use):
        with pytest.raises(TypeError, match=r"unexpected keyword|Wrong arguments|positional"):
            use(cupy, cupy.ones((3, 3)))

    def test_dtypes_that_cupy_has_not(self, cupy):
        for dtype in (object, "U3", np.longdouble, "M8[s]"):
            with pytest.raises(ValueError, match="Unsupported dtype"):
                cupy.zeros(3, dtype)

    def test_index_out_of_bounds_is_no_index_error_there(self, cupy):
        x = cupy.ones(3)
        with pytest.raises(cupy.OutOfBoundsError, match="another element"):
            x[cupy.array([3])]
        with pytest.raises(IndexError):
            x[3]

    def test_an_array_is_no_index_of_python(self, cupy):
        with pytest.raises(TypeError):
            range(cupy.array(3))

    def test_deprecated_scatter_add(self, cupy):
        import cupyx

        x = cupy.zeros(3)
        with pytest.warns(DeprecationWarning, match="scatter_add"):
            cupyx.scatter_add(x, [0, 0], 1)
        assert x.get().tolist() == [2, 0, 0]

    def test_devices_that_are_not_there(self, cupy):
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="invalid device ordinal"):
            cupy.cuda.Device(2).use()

    def test_elapsed_time_of_events_without_time(self, cupy):
        begin, end = (cupy.cuda.get_current_stream().record() for _ in range(2))
        assert cupy.cuda.get_elapsed_time(begin, end) > 0
        event = cupy.cuda.Event(disable_timing=True)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
            cupy.cuda.get_elapsed_time(event, event)

    def test_waiting_for_an_event_that_was_not_recorded(self, cupy):
        with pytest.raises(RuntimeError, match="never recorded"):
            cupy.cuda.Stream(non_blocking=True).wait_event(cupy.cuda.Event())


@pytest.mark.gpu
class TestDevices:
    @pytest.mark.parametrize(
        "use",
        [
            lambda cupy, x: x + 1,
            lambda cupy, x: x.sum(),
            lambda cupy, x: x.reshape(3, 2).T.reshape(6),
            lambda cupy, x: x.__setitem__(0, 1),
            lambda cupy, x: cupy.concatenate([x, cupy.ones(3)]),
        ],
    )
    def test_kernel_on_arrays_of_another_device(self, cupy, use):
        with cupy.cuda.Device(1):
            x = cupy.ones(6)
        with pytest.raises(ValueError, match=r"resides \(1\) is different from .* device \(0\)"):
            use(cupy, x)

    def test_views_and_copies_to_the_host_need_no_current_device(self, cupy):
        with cupy.cuda.Device(1):
            x = cupy.arange(6)
        assert x.reshape(2, 3)[1:].get().tolist() == [[3, 4, 5]]
        assert int(x[2]) == 2

    def test_copy_goes_to_the_current_device(self, cupy):
        with cupy.cuda.Device(1):
            x = cupy.arange(3)
        y = x.copy()
        assert y.device.id == 0 and (y + 1).get().tolist() == [1, 2, 3]
        cupy.copyto(y, x)
        assert copy.deepcopy(x).device.id == 1

    def test_entering_a_device_ends(self, cupy):
        with cupy.cuda.Device(1) as device:
            assert cupy.cuda.get_device_id() == device.id == 1
        assert cupy.cuda.get_device_id() == 0

    def test_generators_of_devices_differ(self, cupy):
        draws = []
        for i in range(2):
            with cupy.cuda.Device(i):
                cupy.random.seed(i)
                draws.append(cupy.random.normal(size=3).get())
        assert not np.array_equal(*draws)
        assert not np.array_equal(draws[0], np.random.RandomState(0).normal(size=3))


@pytest.mark.gpu
class TestOrder:
    """Work that runs at the same time on a GPU."""

    def _unordered(self, cupy, work):
        place = rf"{__file__.rpartition('/')[2]}:\d+ has no order with .*{__name__[-11:]}.py:\d+"
        with pytest.raises(RuntimeError, match=place):
            work()
        assert len(cupy.double.faults) == 1
        cupy.double.faults.clear()

    def test_reading_what_another_stream_writes(self, cupy):
        x = cupy.ones(3)
        with cupy.cuda.Stream(non_blocking=True):
            self._unordered(cupy, lambda: x + 1)

    def test_writing_what_another_stream_reads(self, cupy):
        x, stream = cupy.ones(3), cupy.cuda.Stream(non_blocking=True)
        stream.wait_event(cupy.cuda.get_current_stream().record())
        with stream:
            y = x + 1
        self._unordered(cupy, lambda: x.fill(0))
        cupy.cuda.get_current_stream().wait_event(stream.record())
        x.fill(0)
        assert y.get().tolist() == [2, 2, 2]

    def test_events_and_waits_of_the_host_are_orders(self, cupy):
        x, stream = cupy.ones(3), cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            x += 1
        stream.synchronize()
        assert (x + 1).get().tolist() == [3, 3, 3]

    def test_blocking_streams_wait_for_the_null_stream(self, cupy):
        x = cupy.ones(3)
        with cupy.cuda.Stream():
            y = x + 1
        assert (y + x).get().tolist() == [3, 3, 3]

    def test_two_blocking_streams_do_not_wait_for_each_other(self, cupy):
        with cupy.cuda.Stream():
            x = cupy.ones(3)
        with cupy.cuda.Stream():
            self._unordered(cupy, lambda: x + 1)

    def test_memory_freed_while_another_stream_uses_it(self, cupy):
        stream = cupy.cuda.Stream(non_blocking=True)
        x = cupy.ones(3)
        stream.wait_event(cupy.cuda.get_current_stream().record())
        with stream:
            y = x + 1
        del x
        (fault,) = cupy.double.faults
        assert "may still use it" in fault and fault.count("test_double.py") == 3
        cupy.double.faults.clear()
        stream.synchronize()
        del y
        assert not cupy.double.faults

    def test_copies_between_devices_wait_for_both(self, cupy):
        x = cupy.ones(3)
        with cupy.cuda.Device(1):
            y = x.copy()
            y += 1
        x += y.copy()
        assert x.get().tolist() == [3, 3, 3]


@pytest.mark.gpu
class TestCounts:
    def test_launches_by_line_without_views(self, cupy):
        x = cupy.ones((2, 3))
        cupy.double.reset()
        for _ in range(3):
            x.T.reshape(3, 2)[1:] + 1
        ((name, line), count) = cupy.double.launches.most_common(1)[0]
        assert (name, count) == ("__add__", 3) and "test_double.py:" in line
        assert cupy.double.launches.total() == 3 and not cupy.double.synchronizations

    @pytest.mark.parametrize(
        "wait", [float, bool, str.format, lambda x: x.get(), lambda x: x.item()]
    )
    def test_waits_of_the_host(self, cupy, wait):
        x = cupy.ones(1)[0]
        cupy.double.reset()
        wait("{:.1f}", x) if wait is str.format else wait(x)
        assert cupy.double.synchronizations.total() == 1

    def test_arrays_that_are_joined_take_a_kernel_each_if_they_are_few(self, cupy):
        arrays = [cupy.zeros(3) for _ in range(9)]
        for n, expected in ((3, 3), (8, 8), (9, 1)):
            cupy.double.reset()
            joined = cupy.concatenate(arrays[:n])
            assert cupy.double.launches.total() == expected
            cupy.concatenate(arrays[:n], out=joined)
            assert cupy.double.launches.total() == 2 * expected

    def test_masks_wait_for_their_count(self, cupy):
        x = cupy.arange(3)
        cupy.double.reset()
        assert x[x > 0].shape == (2,)
        assert cupy.double.synchronizations.total() == 1


@pytest.mark.gpu
@needs_compiler
class TestKernels:
    def test_elementwise_of_strided_and_broadcast_arrays(self, cupy):
        kernel = cupy.ElementwiseKernel("T x, S y", "T z", "z = x + (T)y", "add")
        x = cupy.arange(6.0).reshape(2, 3)
        expected = np.arange(6.0).reshape(2, 3).T + np.arange(2)
        assert np.array_equal(kernel(x.T, cupy.arange(2)).get(), expected)
        out = cupy.zeros((2, 3)).T
        assert kernel(x.T, 2.5 and np.float64(2.5), out) is out
        assert np.array_equal(out.get(), x.get().T + 2.5)

    def test_half_precision(self, cupy):
        kernel = cupy.ElementwiseKernel("T x", "T y", "T t = x * x; y = sqrt(t)", "f")
        assert kernel(cupy.arange(4, dtype="e")).get().tolist() == [0, 1, 2, 3]

    def test_raw_parameters_and_size(self, cupy):
        kernel = cupy.ElementwiseKernel(
            "raw T x, int32 n", "raw T y", "y[n - 1 - i] = x[i]", "flip"
        )
        x, y = cupy.arange(4.0), cupy.zeros(4)
        kernel(x, 4, y, size=4)
        assert y.get().tolist() == [3, 2, 1, 0]
        with pytest.raises(ValueError, match="Loop size is undecided"):
            kernel(x, 4, y)

    @pytest.mark.parametrize(
        ("declared", "dtypes"),
        [("T x, T y", "fd"), ("float32 x, T y", "df"), ("T x, int32 y", "fl")],
    )
    def test_mixed_types(self, cupy, declared, dtypes):
        kernel = cupy.ElementwiseKernel(declared, "T z", "z = x + y", "mixed")
        x, y = (cupy.ones(3, dtype) for dtype in dtypes)
        with pytest.raises(TypeError, match="Type is mismatched"):
            kernel(x, y)

    def test_arrays_of_the_host_and_wrong_numbers_of_arguments(self, cupy):
        kernel = cupy.ElementwiseKernel("T x", "T y", "y = x", "same")
        with pytest.raises(TypeError, match="Unsupported type"):
            kernel(np.ones(3))
        with pytest.raises(TypeError, match="Wrong number of arguments"):
            kernel(cupy.ones(3), cupy.ones(3), cupy.ones(3))
        with pytest.raises(ValueError, match="Out shape is mismatched"):
            kernel(cupy.ones(3), cupy.ones(2))

    def test_text_that_does_not_compile(self, cupy):
        kernel = cupy.ElementwiseKernel("T x", "T y", "y = unheard_of(x)", "wrong")
        with pytest.raises(RuntimeError, match="unheard_of"):
            kernel(cupy.ones(3))

    @pytest.mark.parametrize("axis", [None, 0, 1, (0, 2), -1])
    @pytest.mark.parametrize("keepdims", [False, True])
    def test_reduction(self, cupy, axis, keepdims):
        kernel = cupy.ReductionKernel(
            "T x, T y", "T z", "x * y", "a + b", "z = sqrt(a)", "0", "norm"
        )
        x = np.random.rand(2, 3, 4)
        y = kernel(cupy.asarray(x), cupy.asarray(x), axis=axis, keepdims=keepdims).get()
        expected = np.sqrt((x * x).sum(axis=axis, keepdims=keepdims))
        np.testing.assert_allclose(y, expected, rtol=1e-13)

    def test_reduction_without_identity(self, cupy):
        kernel = cupy.ReductionKernel("T x", "T y", "x", "max(a, b)", "y = a", None, "highest")
        assert kernel(cupy.array([-3.0, -1.0])).item() == -1
        with pytest.raises(ValueError, match="zero-size array"):
            kernel(cupy.ones(0))

    def test_raw_kernel(self, cupy):
        x, y = cupy.arange(10, dtype="f"), cupy.zeros(10, "f")
        cupy.RawKernel(SQUARE, "square")((3,), (4,), (x, y, np.int32(10)))
        assert y.get().tolist() == [i * i for i in range(10)]

    def test_threads_that_wait_for_one_another(self, cupy):
        x, y = cupy.arange(8, dtype="f"), cupy.zeros(8, "f")
        cupy.RawKernel(REVERSE, "reverse")((2,), (4,), (x, y))
        assert y.get().tolist() == [3, 2, 1, 0, 7, 6, 5, 4]

    def test_raw_kernel_with_wrong_arguments(self, cupy):
        kernel, x = cupy.RawKernel(SQUARE, "square"), cupy.zeros(10, "f")
        with pytest.raises(TypeError, match="8 bytes given for the int"):
            kernel((3,), (4,), (x, x, 10))
        with pytest.raises(TypeError, match="array of float64 given for"):
            kernel((3,), (4,), (x, x.astype("d"), np.int32(10)))
        with pytest.raises(TypeError, match="takes 3 arguments"):
            kernel((3,), (4,), (x, x))

    def test_raw_kernels_are_ordered_too(self, cupy):
        x = cupy.zeros(10, "f")
        with cupy.cuda.Stream(non_blocking=True), pytest.raises(RuntimeError, match="no order"):
            cupy.RawKernel(SQUARE, "square")((3,), (4,), (x, x, np.int32(10)))
        cupy.double.faults.clear()


@pytest.mark.gpu
class TestValues:
    def test_scalars_are_arrays_without_dimensions(self, cupy):
        x = cupy.arange(3.0)
        assert isinstance(x.sum(), cupy.ndarray) and x[1].shape == ()
        assert isinstance(np.float32(2) * x, cupy.ndarray)
        assert isinstance(np.sqrt(x), cupy.ndarray)

    def test_arrays_of_the_host_are_copied(self, cupy):
        host = np.zeros(3)
        for make in (cupy.asarray, cupy.array, cupy.ascontiguousarray):
            make(host).fill(1)
        assert host.tolist() == [0, 0, 0]

    def test_operators(self, cupy):
        x = cupy.arange(4)
        x |= 4
        results = x.get(), (x & 5 | 8).get(), (~x ^ 1).get(), (7 - x).get(), divmod(x, 2)[1].get()
        host = np.arange(4) | 4
        for result, expected in zip(results, (host, host & 5 | 8, ~host ^ 1, 7 - host, host % 2)):
            assert np.array_equal(result, expected)

    def test_views_share_memory(self, cupy):
        x = cupy.zeros((2, 3))
        x.T[1] = 1
        x[:, 2:] += 2
        assert x.get().tolist() == [[0, 1, 2], [0, 1, 2]]

    def test_in_place_without_dimensions(self, cupy):
        x = y = cupy.zeros(())
        x += 1
        assert y.item() == 1

    def test_pinned_memory_holds_copies(self, cupy):
        x = cupy.arange(3.0)
        memory = cupy.cuda.alloc_pinned_memory(x.nbytes)
        out = np.frombuffer(memory, x.dtype, 3)
        assert x.get(out=out) is out and out.tolist() == [0, 1, 2]

    def test_pickles_as_values(self, cupy):
        assert pickle.loads(pickle.dumps(cupy.arange(3))).get().tolist() == [0, 1, 2]

    def test_pool_and_hook_count_bytes(self, cupy):
        class Hook(cupy.cuda.MemoryHook):
            n_bytes = 0

            def malloc_postprocess(self, **allocation):
                self.n_bytes += allocation["mem_size"]

        before = cupy.get_default_memory_pool().used_bytes()
        with Hook() as hook:
            x = cupy.zeros(100, "f")
        assert hook.n_bytes == 400
        assert cupy.get_default_memory_pool().used_bytes() == before + 400
        del x
        assert cupy.get_default_memory_pool().used_bytes() == before

    def test_public_names_are_cupys(self, cupy):
        from cupy._contract import CONTRACT

        for name, owner in (
            ("cupy.ndarray", cupy.ndarray),
            ("cupy.cuda.Device", cupy.cuda.Device),
            ("cupy.cuda.Event", cupy.cuda.Event),
            ("cupy.cuda.MemoryHook", cupy.cuda.MemoryHook),
            ("cupy.random.RandomState", cupy.random.RandomState),
        ):
            public = {key for key in vars(owner) if not key.startswith("_")}
            assert public <= CONTRACT[name].keys(), name


def test_reductions_of_nothing(cupy):
    total = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = a", "0", "total_of_squares")
    np.testing.assert_array_equal(total(cupy.zeros((2, 0)), axis=1).get(), [0, 0])
    assert float(total(cupy.zeros(0))) == 0
