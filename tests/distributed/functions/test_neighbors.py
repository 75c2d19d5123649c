"""Tests exchanges of neighbors by sendrecv, permute and shift, in a program with halos.

``test_communication.py`` tests values, adjoints and derivatives of each function alone.
"""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain.distributed import CollectiveMismatchError
from mpchain.distributed import functions as D
from tests.distributed.devices import assert_allclose, assert_array_equal, on_device, xp
from tests.distributed.functions.test_communication import _next, _orders

ON_GPUS = True
N = 12


def _step(u, left, right):
    """Computes a step of a nonlinear diffusion, with one value from each neighbor."""
    wide = F.concat([left, u, right], 0)
    return u + 0.2 * (wide[2:] - 2 * u + wide[:-2]) + 0.05 * u**2


def _as_one_process(n_steps, wall, wraps):
    x = u = mpchain.Variable(on_device(np.sin(np.arange(1.0, N + 1))))
    for _ in range(n_steps):
        ends = (u[-1:], u[:1]) if wraps else (xp.full(1, wall), xp.zeros(1))
        u = _step(u, *ends)
    return x, u


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("way", ["shift", "sendrecv", "permute"])
def test_halo_exchange_to_second_order(comm, way, wraps):
    """As MPI's users write it, all ranks send to the right, then all ranks send to the left."""
    rank, n = comm.rank, comm.size
    begin, end = comm.share_of(N)
    before, after = ((rank + i) % n if wraps or 0 <= rank + i < n else None for i in (-1, 1))
    pairs = [(i, (i + 1) % n) for i in range(n if wraps else n - 1)]

    def exchange(u):
        right, left, wall = u[-1:], u[:1], 0.5
        if way == "shift":
            from_left = D.shift(comm, right, wrap=wraps, fill=wall)
            return from_left, D.shift(comm, left, -1, wrap=wraps)
        if way == "sendrecv":
            from_left = D.sendrecv(comm, right, after, before, fill=wall)
            return from_left, D.sendrecv(comm, left, before, after)
        back = [(dest, source) for source, dest in pairs]
        return D.permute(comm, right, pairs, fill=wall), D.permute(comm, left, back)

    whole, expected = _as_one_process(4, 0.5, wraps)
    x = u = mpchain.Variable(whole.array[begin:end].copy())
    for _ in range(4):
        u = _step(u, *exchange(u))
    assert_allclose(u.array, expected.array[begin:end], rtol=1e-13)
    for (mine,), (theirs,) in zip(
        _orders(F.sum(u**3), [x], 3), _orders(F.sum(expected**3), [whole], 3), strict=True
    ):
        assert_allclose(mine, theirs[begin:end], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (300_000,)])
@pytest.mark.parametrize("dtype", ["int32", "float16", "float32", "float64"])
def test_arrays_of_each_kind(comm, shape, dtype):
    """Arrays of more than 1 MiB are sent in separate messages after their headers."""
    x = xp.full(shape, comm.rank + 1, dtype)
    y = comm.sendrecv(x, _next(comm, 1), _next(comm, -1))
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert_array_equal(y, _next(comm, -1) + 1)
    assert comm.sendrecv(x, None, None) is None
    assert comm.sendrecv(None, None, None) is None


def test_bfloat16_and_arrays_that_are_not_contiguous(comm):
    if xp.ones(1).__class__ is not np.ndarray:
        pytest.skip("needs the host, because GPUs have no bfloat16 here")
    x = np.full((4, 6), comm.rank, mpchain.mixed_bf16)[::2, 1::2]
    y = comm.sendrecv(x, _next(comm, 1), _next(comm, -1))
    assert y.dtype == x.dtype and y.shape == (2, 3) and (y == _next(comm, -1)).all()


def test_a_message_is_what_it_was_when_it_was_sent(comm):
    """The sender continues at once, and may overwrite its array. The receiver requests messages in
    another order than they arrive."""
    x = xp.zeros(200_000)
    if comm.rank == 0:
        for tag in range(3):
            x[...] = tag + 1
            comm.sendrecv(x, comm.size - 1, None, tag)
        x[...] = 9
    if comm.rank == comm.size - 1:
        for tag in (2, 0, 1):
            assert_array_equal(comm.sendrecv(x, None, 0, tag), tag + 1)


def test_messages_of_one_tag_keep_their_order(comm):
    for i in range(3):
        comm.sendrecv(xp.full(1, i), _next(comm, 1), None)
    for i in range(3):
        assert_array_equal(comm.sendrecv(xp.ones(1), None, _next(comm, -1)), i)


def test_a_rank_that_waits_for_itself(comm):
    with pytest.raises(RuntimeError, match=r"^sendrecv: rank \d waits for .* tag 4 from itself"):
        comm.sendrecv(xp.ones(1), None, comm.rank, 4)


def test_a_gradient_that_nobody_takes_is_an_error(comm):
    """Rank 0 does not use the result of shift, so the gradient of its x lacks the part of rank
    1."""
    if comm.size != 2:
        pytest.skip("needs two ranks")
    for _ in range(2):  # if the array is used, there is no error
        x = mpchain.Variable(xp.ones(2))
        F.sum(D.shift(comm, x) ** 2).backward()
    x = mpchain.Variable(xp.ones(2))
    y = D.shift(comm, x)
    if comm.rank == 0:
        del y
    else:
        F.sum(y**2).backward()
    comm.barrier()
    if comm.rank == 0:
        message = r"rank 1 has sent back gradient 1 of message [0-9]+ \(shift\).*tie it .* as fill"
        with pytest.raises(CollectiveMismatchError, match=message):
            for _ in range(10_000):  # the message may be pending
                D.sendrecv(comm, x, None, None)
        comm._mail().arrived.clear()
    comm.barrier()


def test_ranks_that_disagree_on_differentiating_again(comm):
    if comm.size != 2:
        pytest.skip("needs two ranks")
    x = mpchain.Variable(xp.ones(2))
    loss = F.sum(D.shift(comm, x, wrap=True) ** 2)
    if comm.rank == 0:
        with pytest.raises(CollectiveMismatchError, match=r"double_backprop=True .* rank 1, which"):
            mpchain.grad([loss], [x], enable_double_backprop=True)
    else:
        mpchain.grad([loss], [x])


def test_wrong_arguments(comm):
    x = xp.ones(1)
    n = comm.size
    with pytest.raises(ValueError, match=f"sendrecv: dest must be a rank from 0 to {n - 1}"):
        D.sendrecv(comm, x, n, 0)
    with pytest.raises(ValueError, match=rf"sendrecv: source must be .*, not {n + 3}"):
        comm.sendrecv(x, None, n + 3)
    for pairs, argument in (([(0, 0), (0, 0)], "source"), ([(0, n)], "destination")):
        with pytest.raises(ValueError, match=f"permute: each {argument} must be a different rank"):
            D.permute(comm, x, pairs)
    for function, arguments in ((D.sendrecv, (0, 0)), (D.permute, ([],)), (D.shift, ())):
        with pytest.raises(TypeError, match=f"{function.__name__}: comm must be a"):
            function(x, comm, *arguments)


def test_the_rank_of_mpi_that_is_none(comm):
    if comm.size == 1:
        pytest.skip("needs MPI")
    from mpi4py import MPI

    y = D.sendrecv(comm, xp.ones(2), MPI.PROC_NULL, MPI.PROC_NULL, fill=3.0)
    assert_array_equal(y.array, 3)


def test_both_orders_of_arguments_of_send(comm):
    x = mpchain.Variable(xp.full(2, 3.0))
    for i, send in enumerate(
        (
            lambda: D.send(comm, x, comm.rank, 5),
            # This is the order of ChainerMN's arguments.
            lambda: D.send(x, comm, comm.rank, 5),
            lambda: D.send(x=x, communicator=comm, rank=comm.rank, tag=5),
        )
    ):
        F.sum(D.recv(comm, comm.rank, send(), 5)).backward()
        assert_array_equal(x.grad, i + 1)


@pytest.mark.parametrize("name", ["allreduce", "reduce", "bcast", "gather", "allgather", "send"])
def test_variables_are_for_the_differentiable_functions(comm, name):
    if name == "bcast" and comm.rank > 0:
        return  # values of ranks other than the root are ignored
    x = mpchain.Variable(xp.ones(2))
    message = (
        rf"^{name}: \w+ must be an array, not a Variable: .*mpchain.distributed.functions.{name}"
    )
    others = (0,) if name == "send" else ()
    with pytest.raises(TypeError, match=message):
        getattr(comm, name)(x, *others)
    with pytest.raises(TypeError, match=r"xs\[0\] must be an array.*functions.alltoall"):
        comm.alltoall([x] * comm.size)
    with pytest.raises(TypeError, match=r"functions\.allreduce, which takes Variables"):
        comm.iallreduce(x)
