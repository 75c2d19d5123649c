"""Tests ConcatWithAsyncTransfer on the CPU, on a GPU, and on a stand-in that records the calls."""

import contextlib
import types

import numpy as np
import pytest

from mpchain.dataset import ConcatWithAsyncTransfer, Converter, asynchronous_transfer

BATCHES = [
    [(np.full((2, 3), 10 * k + i, np.float32), np.int32(i)) for i in range(2 + k % 2)]
    for k in range(6)
]


@pytest.mark.parametrize("device", [None, -1, "@numpy"])
def test_on_the_cpu(device):
    converter = ConcatWithAsyncTransfer()
    assert isinstance(converter, Converter)
    x, t = converter(BATCHES[1], device)
    np.testing.assert_array_equal(x, np.stack([x for x, _ in BATCHES[1]]))
    np.testing.assert_array_equal(t, [0, 1, 2])
    padded = converter([{"x": np.ones(1)}, {"x": np.ones(2)}], device, padding=0)
    np.testing.assert_array_equal(padded["x"], [[1, 0], [1, 1]])


@pytest.mark.gpu
def test_on_a_gpu():
    converter = ConcatWithAsyncTransfer()
    for batch in BATCHES:
        x, t = converter(batch, "@cupy:0")
        np.testing.assert_array_equal((x * 2).get(), 2 * np.stack([x for x, _ in batch]))
        np.testing.assert_array_equal(t.get(), np.arange(len(batch)))


class Stream:
    """Records what is queued; copies wait until a program synchronizes with a later event."""

    current = latest = None

    def __init__(self, name, notes):
        self.name, self.notes = name, notes
        self.copies = []
        Stream.latest = self

    def record(self):
        event = types.SimpleNamespace(stream=self, number=len(self.notes))
        event.synchronize = self.run
        self.notes.append(("record", self.name))
        return event

    def wait_event(self, event):
        self.notes.append(("wait", self.name, event.stream.name, event.number))

    def run(self):
        for target, source in self.copies:
            target[...] = source
        self.copies.clear()

    def __enter__(self):
        Stream.current = self

    def __exit__(self, *exc_info):
        Stream.current = None


class Array(np.ndarray):
    def set(self, source, stream):
        assert stream.name == "copies"
        stream.copies.append((self, source))


class Memory(bytearray):
    def size(self):
        return len(self)


class Device:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name

    def create_context(self):
        return contextlib.nullcontext()


def empty(shape, dtype):
    assert Stream.current.name == "copies"
    return np.full(shape, -1, dtype).view(Array)


@pytest.fixture
def notes(monkeypatch):
    notes = []
    compute = Stream("compute", notes)
    cupy = types.SimpleNamespace(
        empty=empty,
        cuda=types.SimpleNamespace(alloc_pinned_memory=Memory, get_current_stream=lambda: compute),
    )
    cuda = types.SimpleNamespace(
        GpuDevice=Device,
        Stream=lambda non_blocking: Stream("copies", notes),
        cupy=cupy,
        is_gpu_array=lambda array: isinstance(array, Array),
    )
    monkeypatch.setattr(asynchronous_transfer, "cuda", cuda)
    monkeypatch.setattr(
        asynchronous_transfer, "backend", types.SimpleNamespace(get_device=lambda device: device)
    )
    return notes


def test_copies_wait_for_what_used_the_memory_and_kernels_for_copies(notes):
    converter, device = ConcatWithAsyncTransfer(), Device("@cupy:0")
    results = [converter(batch, device) for batch in BATCHES]
    Stream.latest.run()
    for batch, (x, t) in zip(BATCHES, results):
        np.testing.assert_array_equal(x, np.stack([x for x, _ in batch]))
        np.testing.assert_array_equal(t, np.arange(len(batch)))
    starts = [i for i, note in enumerate(notes) if note == ("record", "compute")]
    assert len(starts) == len(BATCHES)
    for k, start in enumerate(starts):
        *middle, copied, use = notes[start + 1 : starts[k + 1] if k + 1 < len(starts) else None]
        assert copied == ("record", "copies")
        assert use == ("wait", "compute", "copies", notes.index(use) - 1)
        # The copy runs beside the kernels of the previous batch, and after the kernels of the batch
        # before that.
        assert middle == ([("wait", "copies", "compute", starts[k - 1])] if k > 0 else [])


def test_dicts_and_arrays_that_are_there_already(notes):
    converter = ConcatWithAsyncTransfer()
    batch = [{"x": np.float32(1), "t": np.zeros(0)}]
    result = converter(batch, Device("@cupy:0"))
    Stream.latest.run()
    assert result["x"] == [1]
    assert result["t"].shape == (1, 0)


def test_an_instance_serves_one_gpu(notes):
    converter, first, second = ConcatWithAsyncTransfer(), Device("@cupy:0"), Device("@cupy:1")
    converter(BATCHES[0], first)
    with pytest.raises(RuntimeError, match="it has copied to @cupy:0 and cannot copy to @cupy:1"):
        converter(BATCHES[0], second)
