"""Tests captures of streams on the double of CuPy: the results of graphs, and what is refused."""

import gc

import numpy as np
import pytest

from mpchain.backends import cuda
from mpchain.kernels.gpu import cublas
from mpchain.kernels.reference import product
from mpchain.observers import current

pytestmark = pytest.mark.gpu


@pytest.fixture
def xp(double):
    return cuda.cupy


class Capturing:
    """Captures in a stream, with memory of a pool; afterwards, ``graph`` is the graph."""

    def __init__(self, xp):
        self.pool, self.stream = xp.cuda.MemoryPool(), xp.cuda.Stream(non_blocking=True)
        self._allocator = xp.cuda.using_allocator(self.pool.malloc)
        self.workspace, self.kept = xp.empty(1024, np.uint8), []
        self.keep = self.kept.append

    def __enter__(self):
        self.stream.__enter__()
        self._allocator.__enter__()
        self.stream.begin_capture()
        current.graph = self
        return self

    def __exit__(self, *exc_info):
        current.graph = None
        self.stream.__exit__(*exc_info)
        self._allocator.__exit__(*exc_info)
        self.graph = self.stream.end_capture()


def test_captured_work_runs_when_the_graph_is_launched(xp):
    x, total = xp.arange(4.0), xp.zeros(4)
    kernel = xp.ElementwiseKernel("T x", "T y", "y = 2 * x", "twice")
    with Capturing(xp) as capturing:
        y = kernel(x + 1)
        total += y
    np.testing.assert_array_equal(total.get(), 0)
    for n in (1, 2, 3):
        capturing.graph.launch()
        np.testing.assert_array_equal(total.get(), n * 2 * (np.arange(4) + 1))
    x[...] = 0
    capturing.graph.launch()
    np.testing.assert_array_equal(y.get(), 2)


def test_what_a_capture_made_has_no_value_before_the_graph_runs(xp):
    with Capturing(xp):
        y = xp.ones(3) + 1
    assert np.isnan(y.get()).all()


def test_raw_kernels_reductions_and_concatenations_are_captured(xp):
    code = 'extern "C" __global__ void twice(const float* x, float* y) { *y = *x * 2; }'
    x, y = xp.ones((), "f"), xp.zeros((), "f")
    with Capturing(xp) as capturing:
        xp.RawKernel(code, "twice")((1,), (1,), (x, y))
        z = xp.concatenate([y[None], x[None]]).sum()
    x[...] = 4
    capturing.graph.launch()
    assert float(y) == 8 and float(z) == 12


def test_a_launch_is_one_launch_of_the_stream(xp, double):
    x = xp.ones(3)
    with Capturing(xp) as capturing:
        x += 1
        x *= 2
    double.reset()
    capturing.graph.upload()
    capturing.graph.launch()
    assert [name for name, _ in double.launches.elements()] == ["graph"]


SHAPES = [((3, 4), (4, 2)), ((1, 4), (4, 1)), ((5, 3, 4), (5, 4, 2)), ((3, 4), (5, 4, 2))]
SHAPES += [
    ((2, 5, 3, 4), (1, 5, 4, 2)),
    ((2, 1, 3, 4), (5, 4, 2)),
]


@pytest.mark.parametrize("dtype", "fde")
@pytest.mark.parametrize("shapes", SHAPES)
def test_products_are_captured(shapes, dtype, xp):
    random = np.random.RandomState(0)
    a, b = (xp.asarray(random.randn(*shape).astype(dtype)) for shape in shapes)
    layouts = [lambda x: x, lambda x: x.swapaxes(-1, -2).copy().swapaxes(-1, -2)]
    layouts += [lambda x: xp.concatenate([x, x], -1)[..., ::2] if x.size else x]
    pairs = [(f(a), g(b)) for f in layouts for g in layouts]
    with Capturing(xp) as capturing:
        found = [product(x, y) for x, y in pairs]
        out = xp.zeros_like(found[0])
        product(a, b, out)
    capturing.graph.launch()
    rtol = 1e-2 if dtype == "e" else 1e-5
    for y, (left, right) in zip([*found, out], [*pairs, (a, b)]):
        expected = np.matmul(left.get().astype("d"), right.get().astype("d"))
        np.testing.assert_allclose(y.get(), expected, rtol=rtol, atol=rtol)


def refused(xp, error, match, work, is_over=True):
    """Checks that captured work is refused, and that there is no graph if ``is_over``."""
    stream, pool = xp.cuda.Stream(non_blocking=True), xp.cuda.MemoryPool()
    with stream, xp.cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        with pytest.raises(error, match=match):
            work(stream)
        if is_over:
            with pytest.raises(xp.cuda.runtime.CUDARuntimeError, match="Invalidated"):
                stream.end_capture()
        else:
            stream.end_capture()
    assert not stream.is_capturing()
    stream.synchronize()


class TestRefusals:
    @pytest.mark.parametrize(
        "work",
        [
            lambda xp, x: float(x[0]),
            lambda xp, x: x.get(),
            lambda xp, x: x[0].item(),
            lambda xp, x: bool(x[0] > 0),
            lambda xp, x: xp.nonzero(x),
            lambda xp, x: x[x > 0],
            lambda xp, x: xp.cuda.Device().synchronize(),
            lambda xp, x: xp.cuda.get_current_stream().synchronize(),
            lambda xp, x: xp.cuda.get_current_stream().done,
        ],
    )
    def test_waits_of_the_host(self, work, xp):
        x, error = xp.ones(3), xp.cuda.runtime.CUDARuntimeError
        refused(xp, error, "Unsupported.*is capturing", lambda stream: work(xp, x))

    def test_questions_about_events_of_the_capture(self, xp):
        error = xp.cuda.runtime.CUDARuntimeError
        for ask in (lambda e: e.done, lambda e: e.synchronize()):
            refused(xp, error, "CapturedEvent", lambda s, ask=ask: ask(s.record()), False)

    @pytest.mark.parametrize(
        "work",
        [
            lambda xp, x: xp.asarray(np.ones(2)),
            lambda xp, x: x.set(np.ones(3)),
            lambda xp, x: x.__setitem__(slice(None), np.ones(3)),
        ],
    )
    def test_copies_from_the_host(self, work, xp):
        x = xp.ones(3)
        refused(xp, RuntimeError, "captured by its address", lambda stream: work(xp, x))

    def test_memory_of_the_pool_that_all_share(self, xp):
        def work(stream):
            with xp.cuda.using_allocator(xp.cuda.get_default_memory_pool().malloc):
                xp.empty(3)

        refused(xp, RuntimeError, "the pool that all share", work)

    @pytest.mark.parametrize(
        "library, work",
        [
            ("cuBLAS", lambda xp, x: x @ x),
            ("cuBLAS", lambda xp, x: xp.vdot(x, x)),
            ("cuSOLVER", lambda xp, x: xp.linalg.inv(x)),
            ("cuRAND", lambda xp, x: xp.random.random_sample(3)),
        ],
    )
    def test_libraries_that_cupy_refuses(self, library, work, xp):
        x = xp.ones((3, 3))
        refused(xp, NotImplementedError, library, lambda stream: work(xp, x), False)

    def test_products_without_a_workspace(self, xp, double, monkeypatch):
        monkeypatch.setattr(cublas._library(), "cublasSetWorkspace_v2", lambda *args: 0)
        with Capturing(xp):
            a = xp.ones((2, 2))
            with pytest.raises(RuntimeError, match="failed with status 13"):
                product(a, a)
        assert "without a workspace" in double.faults.pop()

    def test_streams_that_cannot_capture(self, xp):
        with pytest.raises(RuntimeError, match="legacy"):
            xp.cuda.Stream.null.begin_capture()
        with pytest.raises(RuntimeError, match="non-blocking"):
            xp.cuda.Stream().begin_capture()
        stream = xp.cuda.Stream(non_blocking=True)
        error = xp.cuda.runtime.CUDARuntimeError
        with pytest.raises(error, match="IllegalState"):
            stream.end_capture()
        stream.begin_capture()
        with pytest.raises(error, match="IllegalState"):
            stream.begin_capture()
        stream.end_capture()

    def test_graphs_that_no_capture_made(self, xp):
        with pytest.raises(NotImplementedError, match="via stream capture"):
            xp.cuda.Graph()


class TestSeveralStreams:
    def fork(self, xp, capturing):
        other = xp.cuda.Stream(non_blocking=True)
        other.wait_event(capturing.stream.record())
        return other

    def test_streams_that_wait_for_a_capture_take_part_in_it(self, xp):
        x = xp.ones(3)
        with Capturing(xp) as capturing:
            y = x + 1
            other = self.fork(xp, capturing)
            with other:
                z = y * 2
            assert other.is_capturing()
            capturing.stream.wait_event(other.record())
            z += 1
        assert not other.is_capturing()
        capturing.graph.launch()
        np.testing.assert_array_equal(z.get(), 5)

    def test_streams_that_are_not_joined(self, xp):
        with pytest.raises(xp.cuda.runtime.CUDARuntimeError, match="Unjoined"):
            with Capturing(xp) as capturing:
                with self.fork(xp, capturing):
                    xp.empty(3).fill(0)

    def test_the_end_by_another_stream(self, xp):
        with pytest.raises(xp.cuda.runtime.CUDARuntimeError, match="IllegalState"):
            with Capturing(xp) as capturing:
                other = self.fork(xp, capturing)
                with pytest.raises(xp.cuda.runtime.CUDARuntimeError, match="Unmatched"):
                    other.end_capture()

    def test_events_that_are_not_captured(self, xp):
        event = xp.cuda.Stream.null.record()
        error = xp.cuda.runtime.CUDARuntimeError
        refused(xp, error, "Isolation", lambda stream: stream.wait_event(event))

    def test_work_without_an_order_within_a_capture(self, xp, double):
        x = xp.ones(3)
        with Capturing(xp) as capturing:
            other = self.fork(xp, capturing)
            x += 1
            with other, pytest.raises(RuntimeError, match="has no order"):
                x += 1
        assert "has no order" in double.faults.pop()

    def test_a_launch_without_an_order(self, xp, double):
        x = xp.ones(3)
        with Capturing(xp) as capturing:
            x += 1
        other = xp.cuda.Stream(non_blocking=True)
        capturing.graph.launch()
        with pytest.raises(RuntimeError, match="has no order"):
            capturing.graph.launch(other)
        assert "has no order" in double.faults.pop()


class TestMemory:
    def lost(self, graph, match, double):
        with pytest.raises(RuntimeError, match=match):
            graph.launch()
        assert double.faults.pop()

    def test_intermediate_memory_stays_with_the_pool(self, xp):
        x = xp.ones(3)
        with Capturing(xp) as capturing:
            x += (x + 1) * 2
        capturing.graph.launch()
        np.testing.assert_array_equal(x.get(), 5)

    def test_memory_of_others_that_was_freed(self, xp, double):
        x, y = xp.ones(3), xp.zeros(3)
        with Capturing(xp) as capturing:
            y += x
        capturing.graph.launch()
        del x
        self.lost(capturing.graph, "was freed and may have another owner", double)

    def test_a_pool_that_serves_others(self, xp, double):
        y = xp.zeros(3)
        with Capturing(xp) as capturing:
            y += y + 1
        with xp.cuda.using_allocator(capturing.pool.malloc):
            z = xp.ones(3)
        self.lost(capturing.graph, "was freed and may have another owner", double)
        del z

    def test_a_pool_that_has_served_others(self, xp):
        x, y = xp.ones(3), xp.zeros(3)
        with Capturing(xp) as capturing:
            y += (x + 1) * 2
        with xp.cuda.using_allocator(capturing.pool.malloc):
            assert xp.ones(3).size == 3  # the array is deleted at the end of this line
        capturing.graph.launch()
        np.testing.assert_array_equal(y.get(), 4)

    def test_a_pool_that_returns_its_memory(self, xp, double):
        y = xp.zeros(3)
        with Capturing(xp) as capturing:
            y += y + 1
        capturing.pool.free_all_blocks()
        self.lost(capturing.graph, "may have another owner", double)

    def test_a_pool_that_is_gone(self, xp, double):
        y = xp.zeros(3)
        capturing = Capturing(xp)
        with capturing:
            y += y + 1
        graph = capturing.graph
        del capturing
        gc.collect()
        self.lost(graph, "was returned to CUDA with its pool", double)
