"""Tests NcclCommunicator with one rank, on the doubles of CuPy and NCCL."""

import numpy as np
import pytest

import mpchain
from mpchain.distributed.communicators import nccl
from mpchain.distributed.communicators.nccl import NcclCommunicator, check_one_rank_per_gpu
from mpchain.distributed.gradients.buckets import GradientReducer
from mpchain.variable import Parameter


def test_two_ranks_on_one_gpu_are_named():
    gpus = ["0000:01:00.0", "0000:02:00.0"]
    check_one_rank_per_gpu([(host, gpu, b"") for host in "ab" for gpu in gpus])
    places = [("a", gpus[0], b""), ("a", gpus[1], b""), ("b", gpus[0], b""), ("a", gpus[1], b"")]
    message = "ranks 1 and 3 use the same GPU, 0000:02:00.0 of host a.*'non_cuda_aware'"
    with pytest.raises(RuntimeError, match=message):
        check_one_rank_per_gpu(places)


def test_parts_of_a_gpu_and_containers_are_known_by_their_identities():
    check_one_rank_per_gpu([("a", "0000:01:00.0", b"1"), ("a", "0000:01:00.0", b"2")])
    with pytest.raises(RuntimeError, match=r"ranks 0 and 1 use the same GPU, .* of host b"):
        check_one_rank_per_gpu([("a", "0000:01:00.0", b"1"), ("b", "0000:02:00.0", b"1")])


def test_nccl_may_allow_two_ranks_on_one_gpu(monkeypatch):
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    check_one_rank_per_gpu([("a", "0000:01:00.0", b"1")] * 2)


@pytest.fixture
def communicator(request):
    if request.config.option.gpu != "double":
        pytest.skip("needs the doubles: --gpu=double")
    MPI = pytest.importorskip("mpi4py.MPI")
    comm = NcclCommunicator(MPI.COMM_SELF)
    yield comm
    comm.finalize()


@pytest.mark.gpu
def test_sources_are_kept_until_nccl_has_read_them(communicator):
    import cupy

    # The array is not contiguous, so a copy is sent.
    request = communicator.iallgather(cupy.ones((3, 4), "f").T)
    assert request.Wait().shape == (1, 4, 3)
    request = communicator.iallgather(cupy.ones(3, "f"))
    del request  # nobody waits for the request
    assert not cupy.double.faults


@pytest.mark.gpu
def test_work_of_nccl_comes_after_kernels_before_it_and_before_those_after_it(communicator):
    import cupy

    x = cupy.ones((3, 4), "f") * 2
    assert (communicator.iallgather(x).Wait() + 1).get().tolist() == [[[3] * 4] * 3]
    assert not cupy.double.faults


@pytest.mark.gpu
def test_ranks_tell_the_identities_of_their_gpus(communicator, monkeypatch):
    import cupy

    told = []
    monkeypatch.setattr(nccl, "check_one_rank_per_gpu", told.extend)
    communicator.iallgather(cupy.ones(3, "f")).Wait()
    ((host, gpu, identity),) = told
    assert host and gpu == cupy.cuda.Device(0).pci_bus_id
    assert identity == cupy.cuda.runtime.getDeviceProperties(0)["uuid"] != b""


@pytest.mark.gpu
def test_events_of_collectives_measure_no_time(communicator, monkeypatch):
    """Events that measure time take twice as long."""
    import cupy

    are_timing, begin = [], cupy.cuda.Event.__init__

    def observe(self, block=False, disable_timing=False, interprocess=False):
        are_timing.append(not disable_timing)
        begin(self, block, disable_timing, interprocess)

    monkeypatch.setattr(cupy.cuda.Event, "__init__", observe)
    communicator.iallgather(cupy.ones(3, "f")).Wait()
    assert are_timing == [False, False]


@pytest.mark.gpu
def test_gradients_in_buckets_begin_at_multiples_of_16_bytes(communicator):
    """NCCL sums arrays that begin elsewhere element by element. Small gradients come last."""
    import cupy

    shapes = {"/b": (10,), "/W": (16, 10), "/c": (3,), "/V": (4, 4, 2)}
    params = {name: Parameter(cupy.zeros(shape, np.float16)) for name, shape in shapes.items()}
    reducer = GradientReducer(communicator)
    reducer.watch(params)
    (bucket,) = reducer._make_buckets([*params])
    begins = {name: place.start * 2 for name, place in bucket.layout.slices.items()}
    assert begins == {"/W": 0, "/V": 320, "/b": 384, "/c": 404}


@pytest.mark.gpu
def test_what_is_complete_keeps_no_sources(communicator):
    """Work may also end while it is polled."""
    import cupy

    class Event:
        answers = iter([False, True])
        done = property(lambda self: next(self.answers))

    request = communicator.iallgather(cupy.ones(3, "f"))
    event, request._event = request._event, Event()
    assert not request.Test()
    request._event = event
    event.synchronize()
    assert request.Test() and not communicator._in_use


@pytest.mark.gpu
@mpchain.testing.attr.multi_gpu(2)
def test_collectives_run_on_the_gpu_of_their_arrays(communicator):
    import cupy

    x = mpchain.get_device("@cupy:1").send(np.ones(3, np.float32))
    gathered = communicator.iallgather(x).Wait()
    assert gathered.device.id == 1
    assert cupy.cuda.get_device_id() == 0
    assert communicator.allreduce(x).get().tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match=r"rank 0 uses arrays of GPU 1.*an array on GPU 0"):
        communicator.iallgather(cupy.ones(3, "f"))
