"""The constants of an H100 SXM, and the estimated time of a step from counts; nothing is
measured."""

from typing import NamedTuple

BANDWIDTH = 3.35e12
"""Bytes per second: 3,350 GB/s in NVIDIA's data sheet for SXM5, as a reseller repeats it
(https://archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html, looked up in November 2026)."""
HALF, SINGLE = 989e12, 67e12
"""Floating-point operations per second, dense with tensor cores, and without. The same table has
1,979e12 with sparsity, half of it without, and 67e12. 989.4e12 and 66.9e12, and 494.7e12 for TF32,
are in https://glennklockwood.com/garden/processors/h100, which cites NVIDIA's white paper."""
PROCESSORS, THREADS = 132, 2048
"""Number of streaming multiprocessors (both pages), and of threads of each (NVIDIA, H100
architecture white paper; not looked up)."""

REACHED = 0.9
"""Assumed share of the bandwidth that a copy reaches. A profile of an H100 SXM5 has 0.84 for
contiguous loads (https://mikamirai.com/blog/gpu-memory-bandwidth/)."""
LATENCY = 0.5e-6
"""Assumed seconds from a load to its value under load, about 850 cycles. The same page has 0.4e-6,
without load."""
SHARES = {"product": 0.6, "convolution": 0.5, "attention": 0.35}
"""Shares of the peak. FlashAttention-2 reaches 35 % on an H100 (J. Shah et al., FlashAttention-3,
2024); the others are assumed, alike for both libraries."""
LAUNCH, NODE = 2e-6, 1.3e-6
"""Assumed seconds that a kernel takes in addition to its work, in a stream and in a graph. 80
kernels take 260 us in a stream, bound by the host, and 70 us in a graph, 0.9 us each, on a GPU that
the page does not name (https://cuda.juliagpu.org/dev/usage/graphs/)."""
GRAPH = 10e-6
"""Assumed seconds of the host for the launch of a graph. The same page has 3.5 and 8 us."""
INSIDE = 2.5e-6
"""Assumed seconds of the host for a launch within a library call. The same page has 3.3 us with the
call from Julia."""
OURS, THEIRS = 12e-6, 10e-6 + INSIDE
"""Seconds of the host for a launch of an operation, its gradient's share included. PyTorch 2.13
takes 230 us for the 22 operations of the MLP's step on arrays of two elements, on a Xeon, without
launches; mpchain's seconds are an estimate. Another host may take half of these times."""


class Kernel(NamedTuple):
    """A kernel launch.

    Attributes:
        name: the name of the kernel.
        n_bytes: the bytes that it reads and writes.
        flops: the operations of its products; 0 without products.
        kind: the kind of the products, a key of :data:`SHARES`.
        grain: the bytes that each thread loads, if it computes one element; 0 means enough to fill
            the memory's queue.
        is_inside: whether a library launches it within a call, without the host's work for a call.
        peak: the peak of which it reaches a share, in operations per second.
    """

    name: str
    n_bytes: float
    flops: float = 0.0
    kind: str = "product"
    grain: int = 0
    is_inside: bool = False
    peak: float = HALF

    def seconds(self) -> float:
        """Returns the time of the kernel's work: the longer of the times for memory and
        operations."""
        reached = REACHED
        if self.grain:  # Little's law: bytes in flight = bandwidth * latency
            under_way = PROCESSORS * THREADS * self.grain
            reached = min(REACHED, under_way / (BANDWIDTH * LATENCY))
        of_memory = self.n_bytes / (reached * BANDWIDTH)
        return max(of_memory, self.flops / (SHARES[self.kind] * self.peak))


class Step(NamedTuple):
    """The launches of a training step, and the host's seconds for each launch."""

    kernels: list
    of_host: float

    n_bytes = property(lambda self: sum(k.n_bytes for k in self.kernels))

    def seconds(self, is_captured: bool = False) -> float:
        """Returns the time of the step: the longer of GPU and host or, if it is captured, the time
        of its graph."""
        work = sum(k.seconds() for k in self.kernels)
        if is_captured:
            return GRAPH + work + NODE * len(self.kernels)
        of_host = sum(INSIDE if k.is_inside else self.of_host for k in self.kernels)
        return max(work + LAUNCH * len(self.kernels), of_host)
