"""Tests recurrent layers whose states pass from rank to rank, against one longer sequence in one
process."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain.configuration import using_config
from mpchain.distributed.links import create_multi_node_n_step_rnn
from tests.distributed.devices import assert_allclose, assert_array_equal, on_device, xp

ON_GPUS = True

KINDS = ["LSTM", "BiLSTM", "GRU", "BiGRU", "RNNTanh", "BiRNNTanh", "RNNReLU", "BiRNNReLU"]


@pytest.fixture(autouse=True)
def _in_float64():
    with using_config("dtype", np.dtype("float64")):
        yield


def _rnn(kind, rank):
    np.random.seed(30 + rank)
    return on_device(getattr(L, f"NStep{kind}")(2, 3, 4, 0))


def _sequences(rank):
    random = np.random.RandomState(40 + rank)
    return on_device([random.normal(size=(n + rank % 2, 3)) for n in (3, 5, 2)])


@pytest.mark.parametrize("kind", KINDS)
def test_states_pass_along_the_ranks(comm, kind):
    """Each rank has its own layers and sequences, and begins with the last states of the previous
    rank."""
    last = comm.size - 1
    rnn = create_multi_node_n_step_rnn(
        _rnn(kind, comm.rank),
        comm,
        rank_in=None if comm.rank == 0 else comm.rank - 1,
        rank_out=None if comm.rank == last else comm.rank + 1,
    )
    *states, ys, delegate = rnn(_sequences(comm.rank))
    loss = sum(F.sum(y**2) for y in ys)
    # The rank's own loss and the loss of the next rank both give gradients to the states.
    (loss if comm.rank == last else _tied(delegate, loss)).backward()

    links = [_rnn(kind, rank) for rank in range(comm.size)]
    expected = [None] * links[0].n_cells
    total = 0
    for rank, link in enumerate(links):
        *expected, expected_ys = link(*expected, _sequences(rank))
        total += sum(F.sum(y**2) for y in expected_ys)
        if rank == comm.rank:
            for state, other in zip(states, expected, strict=True):
                assert_allclose(state.array, other.array, rtol=1e-12)
            for y, other in zip(ys, expected_ys, strict=True):
                assert_allclose(y.array, other.array, rtol=1e-12)
    total.backward()
    pairs = zip(rnn.actual_link.params(), links[comm.rank].params(), strict=True)
    for param, other in pairs:
        assert_allclose(param.grad, other.grad, rtol=1e-10, atol=1e-13)


def _tied(delegate, loss):
    return mpchain.distributed.functions.pseudo_connect(delegate, loss)


def test_a_delegate_variable_runs_backward_where_there_is_no_loss(comm):
    """An encoder on the first rank is an example, from which the decoder needs only the states."""
    if comm.size == 1:
        return
    if comm.rank == 0:
        rnn = create_multi_node_n_step_rnn(_rnn("LSTM", 0), comm, rank_out=1)
        *_, delegate = rnn(_sequences(0))
        assert delegate.shape == (0,)
        delegate.backward()
    elif comm.rank == 1:
        rnn = create_multi_node_n_step_rnn(_rnn("LSTM", 1), comm, rank_in=0)
        *_, ys, delegate = rnn(None, None, _sequences(1))
        assert delegate.shape == (0,)
        sum(F.sum(y) for y in ys).backward()
    else:
        return
    assert all(param.grad is not None for param in rnn.params())


def test_states_that_are_given(comm):
    link = _rnn("GRU", 0)
    rnn = create_multi_node_n_step_rnn(link, comm)
    hx = xp.ones((2, 3, 4))
    h, _, delegate = rnn(hx, _sequences(0))
    expected_h, _ = link(hx, _sequences(0))
    assert_array_equal(h.array, expected_h.array)
    delegate.backward()
    assert_array_equal(link[0].w0.grad, xp.zeros((4, 3)))


def test_errors(comm):
    with pytest.raises(TypeError, match=r"actual_link must be an NStep link.*, not Linear"):
        create_multi_node_n_step_rnn(L.Linear(2), comm)
    rnn = create_multi_node_n_step_rnn(_rnn("LSTM", 0), comm, rank_in=0)
    with pytest.raises(TypeError, match=r"pass xs, or 2 states and xs, to NStepLSTM, not 2"):
        rnn(None, _sequences(0))
    with pytest.raises(TypeError, match="the first states come from rank 0"):
        rnn(xp.ones((2, 3, 4)), None, _sequences(0))
