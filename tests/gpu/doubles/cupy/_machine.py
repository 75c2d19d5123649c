"""The imitated machine: devices, streams, events and memory, and the order of work on them.

Work runs at once, on the host. Vector clocks find what a GPU could do at the same time: each
stream, and the host, counts its work, and remembers how much work of each other stream precedes its
next work. An access to memory that no order separates from an earlier access is an error.
"""

import atexit
import collections
import contextlib
import functools
import itertools
import math
import os
import pathlib
import sys
import threading
import time
import weakref

import numpy as np

from cupy._records import CUDARuntimeError, Fate, History, OutOfMemoryError, RaceError, Work

N_DEVICES = int(os.environ.get("CUPY_DOUBLE_DEVICES", "2"))
_HERE = str(pathlib.Path(__file__).parents[1])
_lock = threading.RLock()


class Ledger:
    """A record of what happened, for tests.

    Attributes:
        launches: {(name of the kernel, file:line): times}.
        moved: {name of the kernel: bytes of the arrays that it reads and writes, each once}.
        work: the launches in order, each a ``Work``.
        computes: whether kernels and products compute; False only counts them, which is fast.
        synchronizations: {(what waited, file:line): times} of the host's waits for a device.
        faults: accesses without an order, memory freed while another stream used it, and wrong
            calls of graphs, NCCL and cuBLAS.
        kernels: the texts of all kernels that were compiled.
        late: the names of kernels that were first compiled while their stream captured.
        not_noted: for each kernel whose accesses could not be recorded, the reason.
    """

    def __init__(self):
        self.computes = True
        self.forget_kernels()
        self.reset()

    def reset(self):
        """Discards all records except ``late``."""
        self.work = []
        self.launches, self.moved = collections.Counter(), collections.Counter()
        self.synchronizations = collections.Counter()
        self.faults = []
        self.kernels = {}
        self.not_noted = {}

    def forget_kernels(self):
        """Lets the next call of each kernel count as the first one."""
        self._loaded, self.late = set(), []

    def compiles(self, name, types, text):
        """Notes the text of a kernel, and its name if its first compilation comes late."""
        self.kernels[name, types] = text
        if (name, text) not in self._loaded:
            self._loaded.add((name, text))
            if get_current_stream().capture is not None:
                self.late.append(name)


ledger = Ledger()


@atexit.register
def _print_faults():
    print(end="\n".join(ledger.faults), file=sys.stderr)


def place():
    """Returns file:line of the innermost frame outside of the double."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@functools.cache
def _is_inside(file):
    return file.startswith((_HERE, "<string>"))


class _Here(threading.local):
    """The current device, streams and memory allocator of a thread."""

    device = 0
    allocator = None

    def __init__(self):
        self.streams = {}


here = _Here()


class Device:
    """A device; entering it makes it the current device."""

    compute_capability = "90"

    @property
    def mem_info(self):
        """Returns the free and the total bytes of the device, as the pools count them."""
        return memory_size - _held(self.id), memory_size

    def __init__(self, device=None):
        self.id = here.device if device is None else int(device)
        self._outer = []

    pci_bus_id = property(lambda self: f"0000:{self.id:02X}:00.0")
    attributes = property(lambda self: {})

    def use(self):
        if not 0 <= self.id < N_DEVICES:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        here.device = self.id

    def synchronize(self):
        wait_on_host("Device.synchronize", *_streams_of(self.id))

    def __enter__(self):
        outer = here.device
        self.use()
        self._outer.append(outer)
        return self

    def __exit__(self, *exc_info):
        here.device = self._outer.pop()

    def __int__(self):
        return self.id

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(("device", self.id))

    def __repr__(self):
        return f"<CUDA Device {self.id}>"


class _Agent:
    """Does work in order. Its clock holds how much of each agent's work precedes its next work."""

    _numbers = itertools.count(1)

    def __init__(self):
        self._number = next(_Agent._numbers)
        self._clock = {self._number: 0}

    def _tick(self):
        self._clock[self._number] += 1
        return self._number, self._clock[self._number]

    def _learn(self, clock):
        if clock.items() <= self._clock.items():  # C code tests this usual case
            return
        for number, count in clock.items():
            if self._clock.get(number, 0) < count:
                self._clock[number] = count

    def _knows(self, stamp):
        return self._clock.get(stamp[0], 0) >= stamp[1]


_host = _Agent()
_streams = weakref.WeakSet()


def _members(weak_set):
    with _lock:  # other threads add entries
        return list(weak_set)


def _streams_of(device_id):
    return [stream for stream in _members(_streams) if stream.device_id == device_id]


class Event:
    """A point in a stream's work."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self._clock = self.capture = None
        self._seconds = None
        self._is_timing = not disable_timing

    def record(self, stream=None):
        stream = stream or get_current_stream()
        self._clock = dict(_joined(stream)._clock)
        self._seconds = time.perf_counter()
        self.capture = stream.capture

    @property
    def done(self):
        self._refuse_if_captured()
        return self._clock is None or _is_over(self._clock)

    def _refuse_if_captured(self):
        if self.capture is not None:
            raise CUDARuntimeError("cudaErrorCapturedEvent: an event of a stream that captures")

    def synchronize(self):
        self._refuse_if_captured()
        ledger.synchronizations["Event.synchronize", place()] += 1
        if self._clock is not None:
            _wait(self._clock)


class Stream(_Agent):
    """A queue of work; a ``non_blocking`` stream does not wait for the null stream."""

    ptds = False

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        super().__init__()
        self._is_null = null
        self.is_non_blocking = non_blocking
        self.device_id = here.device
        self.capture = None
        self.priority = priority or 0
        self.ptr = 0 if null else 0x10000 + self._number
        self._outer = []
        self._learn(_host._clock)
        with _lock:
            _streams.add(self)

    def __enter__(self):
        self._outer.append((here.device, here.streams.get(here.device)))
        return self.use()

    def __exit__(self, *exc_info):
        device_id, stream = self._outer.pop()
        here.streams[device_id] = stream

    def use(self):
        here.streams[here.device] = self
        return self

    def synchronize(self):
        wait_on_host("Stream.synchronize", self)

    def record(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        if event._clock is None:
            raise RuntimeError("Stream.wait_event: the event was never recorded, so nothing waits")
        if self.capture is None and event.capture is not None:
            if self not in event.capture.streams:
                event.capture.streams.append(self)
            self.capture = event.capture
        elif self.capture is not event.capture:
            self.capture.refuse("Isolation", "it waits for work that is not captured with it")
        self._learn(event._clock)

    def is_capturing(self):
        return self.capture is not None

    def begin_capture(self, mode=None):
        from cupy._graphs import Capture

        if self._is_null:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if not self.is_non_blocking:
            raise RuntimeError("the double captures non-blocking streams only")
        if self.capture is not None:
            raise CUDARuntimeError("cudaErrorIllegalState: the stream captures already")
        self.capture = Capture(self)

    def end_capture(self):
        if self.capture is None:
            raise CUDARuntimeError("cudaErrorIllegalState: the stream does not capture")
        return self.capture.end(self)

    @property
    def done(self):
        refuse_to_wait([self])
        return _is_over(_joined(self)._clock)

    def add_callback(self, callback, arg):
        callback(self, 0, arg)

    def launch_host_func(self, callback, arg):
        callback(arg)

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return self._number


_null_streams = {}


def null_stream(device_id):
    """Returns the default stream of a device."""
    if device_id not in _null_streams:
        with Device(device_id):
            _null_streams[device_id] = Stream(null=True)
    return _null_streams[device_id]


def get_current_stream(device_id=None):
    """Returns the current stream of a device; None means the current device."""
    device_id = here.device if device_id is None else device_id
    return here.streams.get(device_id) or null_stream(device_id)


def _joined(stream):
    """Notes the work that CUDA orders before the stream's next work even without an event; returns
    the stream.

    The null stream and the blocking streams of its device wait for each other. All work follows the
    work for which the host has waited.
    """
    stream._learn(_host._clock)
    if stream._is_null:
        for other in _streams_of(stream.device_id):
            if not other.is_non_blocking:
                stream._learn(other._clock)
    elif not stream.is_non_blocking:
        stream._learn(null_stream(stream.device_id)._clock)
    return stream


def stream_of(number):
    """Returns the stream with a number, on the current device or another one; None if there is
    none."""
    if number == 0:
        return null_stream(here.device)
    return next((stream for stream in _members(_streams) if stream.ptr == number), None)


def refuse_to_wait(streams):
    """Raises CUDA's error if one of the streams captures."""
    for stream in streams:
        if stream.capture is not None:
            stream.capture.refuse("Unsupported", "operation not permitted when stream is capturing")


def wait_on_host(what, *streams):
    """Lets the host wait for streams (without any, the current one), and counts the wait."""
    refuse_to_wait(streams or [get_current_stream()])
    ledger.synchronizations[what, place()] += 1
    for stream in streams or [get_current_stream()]:
        _wait(_joined(stream)._clock)


_in_flight = []
"""(stamp, ticket, host memory) of work that another library does later, in the order of calls."""


def _unfinished(clock):
    """Returns the tickets of other libraries' work that precedes a clock."""
    with _lock:  # a watchdog also calls this, and must not remove new entries
        _in_flight[:] = [work for work in _in_flight if not work[1].is_done()]
        return [ticket for stamp, ticket, _ in _in_flight if clock.get(stamp[0], 0) >= stamp[1]]


def _is_over(clock):
    if _unfinished(clock):
        return False
    _host._learn(clock)
    return True


def _wait(clock):
    for ticket in _unfinished(clock):
        ticket.wait()
    _host._learn(clock)


hooks = []
"""The memory hooks that are currently entered."""


class Memory:
    """A block of a pool; dropping it returns it to the stream on which it was allocated."""

    def __init__(self, host):
        self.host = host
        self.ptr = host.__array_interface__["data"][0]
        self.size = host.nbytes
        self.device_id = here.device
        self._stream = get_current_stream()
        self._history = History()
        self._tickets = []
        self.line = place()
        owner = here.allocator(self.size) if here.allocator else pool
        owner.take(self.device_id, self.size)
        owner.n_served += 1
        self.fate = Fate(owner)
        self.served_at = owner.n_served
        if self._stream.capture is not None:
            self._stream.capture.allocate(self)
        for hook in hooks:
            sizes = {"device_id": self.device_id, "mem_size": self.size}
            hook.malloc_postprocess(**sizes, size=self.size, mem_ptr=self.ptr, pmem_id=id(self))
            hook.alloc_postprocess(**sizes, mem_ptr=self.ptr)
        with _lock:
            pool.blocks.add(self)

    def __del__(self):
        # The interpreter is ending, or there is no memory.
        if _host is None or not hasattr(self, "fate"):
            return
        owner = self.fate.pool()
        if owner is not None:
            owner.give_back(self._stream, self.size)
        self.fate.freed_at = owner.n_served if owner is not None else 0
        capture = self._stream.capture
        if owner is not pool and capture is None:
            return
        stamps = self._history.stamps() if capture is None else capture.stamps_of(self)
        if all(stamp[0] == self._stream._number for stamp, _ in stamps):
            return
        self._stream._learn(_host._clock)
        for stamp, line in stamps:
            if not _joined(self._stream)._knows(stamp):
                ledger.faults.append(
                    f"memory allocated at {self.line} is freed at {place()}, and reused by the "
                    f"stream that it was allocated on, while another stream may still use it "
                    f"(at {line}): keep the array, or let that stream wait for an event"
                )
                return

    def finish(self, ticket=None):
        """Waits for pending work of other libraries, unless that work precedes a ticket anyway."""
        for earlier in self._tickets:
            if ticket is None or ticket.comm != earlier.comm:
                earlier.wait()

    def is_finished(self):
        return all(ticket.is_done() for ticket in self._tickets)

    def covers(self, pointer):
        """Returns whether an address is in this block."""
        return self.ptr <= pointer < self.ptr + self.size

    def access(self, stream, writes, ticket=None):
        """Records an access by a stream's next work; raises RaceError if no order separates it from
        an earlier access.

        A ticket belongs to a library that does the work later, in the order of the tickets of one
        communicator; other accesses wait for the ticket.
        """
        line = place()
        with _lock:
            _joined(stream)
            capture, history = stream.capture, self._history
            if capture is None and self._stream.capture is not None:
                self._stream.capture.refuse_outside(self)
            elif capture is not None:
                history = capture.history_of(self, writes)
            earlier = [history.written] if history.written else []
            if writes:
                earlier += history.read.values()
            for stamp, other_line in earlier:
                if not stream._knows(stamp):
                    fault = (
                        f"{'write' if writes else 'read'} at {line} has no order with the access "
                        f"of another stream at {other_line}: record an event there, and wait for "
                        f"it here"
                    )
                    ledger.faults.append(fault)
                    raise RaceError(fault)
        self.finish(ticket)  # the call may wait for another thread, so it must not hold the lock
        with _lock:
            stamp = stream._tick(), line
            self._tickets = [other for other in self._tickets if not other.is_done()]
            if ticket is not None:
                self._tickets.append(ticket)
                _in_flight.append((stamp[0], ticket, self.host))
            if writes:
                history.read, history.written = {}, stamp
            else:
                history.read[stream._number] = stamp


class MemoryPointer:
    """An address in a block of memory."""

    def __init__(self, mem, ptr):
        self.mem, self.ptr, self.device_id = mem, ptr, mem.device_id

    @property
    def device(self):
        return Device(self.device_id)


memory_size = 80 << 30
"""The number of bytes of each device."""

_pools = weakref.WeakSet()


def _rounded(size):
    return -(-size // 512) * 512


def _held(device_id):
    return sum(pool.held[device_id] for pool in _members(_pools))


def _arena(stream):
    return stream.device_id, stream._number


class DeviceMemory:
    """Memory by cudaMalloc, like ``cupy.cuda.Memory``; raises an error if the device has too little
    memory.

    Pools only count it; arrays have other memory.
    """

    ptr = 0

    def __init__(self, size):
        if _held(here.device) + size > memory_size:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        self.size, self.device_id = size, here.device


class MemoryPool:
    """Counts the memory of arrays, and keeps freed memory for its own next arrays.

    Args:
        allocator: the function that requests memory from CUDA.

    Attributes:
        blocks: the existing blocks of all pools; only ``pool`` has them, other pools have none.
        n_served: the number of blocks that the pool has served.
        returned_at: the value of ``n_served`` when memory was last returned to CUDA.
        held: the number of bytes that CUDA gave to the pool, by device.
        kept: the number of held bytes that no array uses, by the stream on which they were
            allocated; only this stream can get them.
    """

    def __init__(self, allocator=None):
        self.blocks = weakref.WeakSet()
        self.n_served = self.returned_at = 0
        self.held, self.kept = collections.Counter(), collections.Counter()
        self._allocator = allocator or (lambda size: MemoryPointer(DeviceMemory(size), 0))
        with _lock:
            _pools.add(self)

    def take(self, device_id, size):
        """Takes memory for an array; raises OutOfMemoryError if the device has too little memory.

        Kept memory can be taken whole or in part, because the double does not imitate fragments.
        """
        size, arena = _rounded(size), _arena(get_current_stream(device_id))
        with _lock:
            if size <= self.kept[arena]:
                self.kept[arena] -= size
                return
            try:
                self._allocator(size)
            except CUDARuntimeError:
                self._free(device_id)
                try:
                    self._allocator(size)
                except CUDARuntimeError:
                    raise OutOfMemoryError(size, self.held[device_id]) from None
            self.held[device_id] += size

    def give_back(self, stream, size):
        """Keeps the memory of a deleted array, for the stream on which it was allocated."""
        self.kept[_arena(stream)] += _rounded(size)

    def _free(self, device_id):
        for arena in [*self.kept]:
            if arena[0] == device_id:
                self.held[device_id] -= self.kept.pop(arena)
        self.returned_at = self.n_served = self.n_served + 1

    def serves_since(self, n_served):
        """Returns whether arrays exist that the pool served after ``n_served`` other blocks."""
        blocks = (b for b in _members(pool.blocks) if b.fate.pool() is self)
        return any(block.served_at > n_served for block in blocks)

    def malloc(self, size):
        """Returns the pool, because the double allocates arrays, not bytes."""
        return self

    def block_of(self, pointer):
        """Returns the block that contains an address; None if there is none."""
        return next((block for block in _members(self.blocks) if block.covers(pointer)), None)

    def used_bytes(self):
        return sum(b.size for b in _members(pool.blocks) if b.fate.pool() is self)

    def total_bytes(self):
        return self.held[here.device]

    def free_all_blocks(self, stream=None):
        """Returns the free memory of the current device to CUDA, including memory of graphs."""
        with _lock:
            self._free(here.device)

    def free_bytes(self):
        return sum(n for arena, n in self.kept.items() if arena[0] == here.device)

    def n_free_blocks(self):
        return int(self.free_bytes() > 0)


pool = MemoryPool()


@contextlib.contextmanager
def using_allocator(allocator=None):
    """Context manager: this thread allocates by the given function, such as the method of a pool,
    or without one from the pool that all share."""
    outer, here.allocator = here.allocator, allocator
    try:
        yield
    finally:
        here.allocator = outer


def get_allocator():
    """Returns the function by which this thread allocates."""
    return here.allocator or pool.malloc


class MemoryHook:
    """A hook that is called at each allocation while it is entered."""

    name = "MemoryHook"

    def __enter__(self):
        hooks.append(self)
        return self

    def __exit__(self, *exc_info):
        hooks.remove(self)

    def malloc_postprocess(self, **allocation):
        """Is called after an allocation from the pool."""

    def alloc_postprocess(self, **allocation):
        """Is called after an allocation from the device."""


class PinnedMemoryPointer(bytearray):
    """Page-locked host memory."""

    def size(self):
        return len(self)


def alloc_pinned_memory(size):
    """Returns page-locked host memory."""
    return PinnedMemoryPointer(size)


def check_current_device(name, arrays):
    """Raises CuPy's error, as on hosts without peer access, for arrays of another device."""
    for array in arrays:
        device_id = array.data.device_id
        if device_id != here.device:
            raise ValueError(
                f"The device where the array resides ({device_id}) is different from the current "
                f"device ({here.device}). Peer access is unavailable between these devices. "
                f"(cupy.{name})"
            )


def count_moved(name, hosts, **work):
    """Counts the bytes that a kernel moves; broadcast arrays count by their own elements.

    Args:
        work: further attributes of ``Work``.
    """
    total = 0
    for host in {id(host): host for host in hosts}.values():
        lengths = (n for n, step in zip(host.shape, host.strides) if step)
        total += host.itemsize * math.prod(lengths)
    ledger.moved[name] += total
    ledger.work.append(Work(name, total, **work))


def grain_of(reads, writes):
    """Returns the number of bytes that a thread loads if it computes one element."""
    size = max((x.size for x in writes), default=0)
    return sum(x.itemsize for x in reads if x.size == size)


def launch(name, reads, writes, again=None, **work):
    """Counts a kernel in the current stream, and records its accesses to memory.

    If the stream captures, the kernel is not counted, and launches of the graph call ``again``.
    ``work`` are further attributes of ``Work``.
    """
    stream = get_current_stream()
    if stream.capture is None:
        ledger.launches[name, place()] += 1
        count_moved(name, [array._host for array in (*reads, *writes)], **work)
    elif again is not None:
        stream.capture.work.append(again)
    written = {id(array._memory): array._memory for array in writes}
    for memory in {id(array._memory): array._memory for array in reads}.values():
        if id(memory) not in written:
            memory.access(stream, writes=False)
    for memory in written.values():
        memory.access(stream, writes=True)


def copy_between_devices(source, target):
    """Records a copy. In a null stream, the copy waits for both devices, whose later work waits for
    it."""
    ledger.launches["copy", place()] += 1
    stream = get_current_stream()
    streams = _streams_of(source.device_id) if stream._is_null else []
    for other in streams:
        stream._learn(other._clock)
    source.access(stream, writes=False)
    target.access(stream, writes=True)
    for other in streams:
        other._learn(stream._clock)


def check_dtype(dtype):
    """Returns the NumPy dtype; raises ValueError for a dtype that CuPy does not have."""
    dtype = np.dtype(dtype)
    is_plain = dtype.kind in "biufc" and (dtype.itemsize < 16 or dtype.kind == "c")
    if not is_plain and dtype.name != "bfloat16":
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype
