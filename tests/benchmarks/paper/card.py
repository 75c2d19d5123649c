"""The constants of an H100 SXM, and the estimated time of a step from counts; nothing is
measured."""

from typing import NamedTuple

BANDWIDTH = 3.35e12
"""Bytes per second (NVIDIA, H100 Tensor Core GPU data sheet, SXM5)."""
HALF, SINGLE = 989e12, 67e12
"""Floating-point operations per second, dense with tensor cores, and without (the same data
sheet)."""
PROCESSORS, THREADS = 132, 2048
"""Number of streaming multiprocessors, and of threads of each (NVIDIA, H100 architecture white
paper)."""

REACHED = 0.9
"""Assumed share of the bandwidth that a copy reaches."""
LATENCY = 0.5e-6
"""Assumed seconds from a load to its value under load, about 850 cycles."""
SHARES = {"product": 0.6, "convolution": 0.5, "attention": 0.35}
"""Shares of the peak. FlashAttention-2 reaches 35 % on an H100 (J. Shah et al., FlashAttention-3,
2024); the others are assumed, alike for both libraries."""
LAUNCH, NODE = 2e-6, 1.3e-6
"""Assumed seconds that a kernel takes in addition to its work, in a stream and in a graph."""
GRAPH = 10e-6
"""Assumed seconds of the host for the launch of a graph."""
INSIDE = 2.5e-6
"""Assumed seconds of the host for a launch within a library call."""
OURS, THEIRS = 12e-6, 10e-6 + INSIDE
"""Seconds of the host for a launch of an operation, its gradient's share included. PyTorch 2.13
takes 230 us for the 22 operations of the MLP's step on arrays of two elements, on a Xeon that needs
no launches; mpchain's are an estimate. Another host may take half of them."""


class Kernel(NamedTuple):
    """A kernel launch.

    Attributes:
        name: of the kernel.
        n_bytes: that it reads and writes.
        flops: of products, else 0.
        kind: a key of :data:`SHARES`, for these.
        grain: bytes that each thread loads, if it has one element; 0: enough to fill the memory's
            queue.
        is_inside: whether a library launches it within a call, without the host's work for a call.
        peak: the operations a second that its share is of.
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
        """Returns the time of the step: the longer of GPU and host."""
        work = sum(k.seconds() for k in self.kernels)
        if is_captured:
            return GRAPH + work + NODE * len(self.kernels)
        of_host = sum(INSIDE if k.is_inside else self.of_host for k in self.kernels)
        return max(work + LAUNCH * len(self.kernels), of_host)
