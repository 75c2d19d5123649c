"""Tests spare ranks, as far as one process can imitate them."""

import types

import numpy as np
import pytest

import mpchain
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed import InMemoryCheckpoint, RanksLost, create_communicator
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.optimizers import create_multi_node_optimizer
from mpchain.distributed.recovery.spares import NO_LOSS, fill


class Spares:
    """Imitates the methods of spare ranks that an ``InMemoryCheckpoint`` calls."""

    n, resumes, lost, loss = 1, False, {1: "imitated"}, NO_LOSS

    def __init__(self):
        self.copies = []

    def copies_of_next(self):
        return self.copies

    def note_refusals(self, comm):
        self.was_noted = True


class Elastic(Communicator):
    is_elastic = True


def begin(spares):
    comm = Elastic()
    comm.spares = spares
    model = L.Linear(None, 2)
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.5), comm).setup(model)
    return InMemoryCheckpoint(comm, {"model": model, "optimizer": optimizer}), model, optimizer


def update(model, optimizer):
    optimizer.update(lambda x: mpchain.functions.sum(model(x)), np.ones((1, 3), "f"))


def test_a_program_that_begins_again_continues_from_its_copies(capsys):
    spares = Spares()
    state, model, optimizer = begin(spares)
    np.random.seed(0)
    for _ in range(3):
        with state.step():
            optimizer.lr /= 2
            update(model, optimizer)
    with pytest.raises(RanksLost) as caught, state.step():
        before, lr = model.W.array.copy(), optimizer.lr
        update(model, optimizer)
        raise RanksLost([1], {1: "imitated"})
    assert caught.value.is_handled
    spares.resumes = True
    state, model, optimizer = begin(spares)
    assert optimizer.lr == 0.5
    with state.step():
        assert state.iteration == 3
        np.testing.assert_array_equal(model.W.array, before)
        assert optimizer.lr == lr
    assert state.iteration == 4
    assert not state.is_before(4) and spares.was_noted
    assert capsys.readouterr().err.startswith("mpchain: went back 0 iterations to 3 in ")


def test_hyperparameters_have_effect_after_a_spare_has_taken_over(capsys):
    """Any code may set hyperparameters, also for single parameters, and a frozen parameter stays
    frozen."""
    spares = Spares()

    def train(lost_at):
        state, model, optimizer = begin(spares)
        model.add_param("scale", (), initializer=np.ones((), "f"))
        optimizer.setup(model)
        model.scale.update_rule.hyperparam.lr = 0.25  # the optimizer's value is set later
        while state.is_before(6):
            with state.step():
                if state.iteration == 2:
                    del model.scale.update_rule.hyperparam.lr
                    model.b.update_rule.enabled = False
                optimizer.lr = 0.5 / (1 + state.iteration)
                if state.iteration == lost_at:
                    raise RanksLost([1], {1: "imitated"})
                optimizer.update(
                    lambda x: mpchain.functions.sum(model(x)) * model.scale, np.ones((1, 3), "f")
                )
        return {name: param.array.copy() for name, param in model.namedparams()}

    np.random.seed(0)
    undisturbed = train(None)
    spares.copies = []
    np.random.seed(0)
    with pytest.raises(RanksLost):
        train(4)
    spares.resumes, spares.loss = True, NO_LOSS
    trained = train(None)
    for name, array in undisturbed.items():
        np.testing.assert_array_equal(trained[name], array, err_msg=name)


def test_without_copies_it_starts_anew(capsys):
    spares = Spares()
    spares.resumes = True
    state, *_ = begin(spares)
    assert not state.resume()
    with state.step():
        assert state.iteration == 0
    assert capsys.readouterr().err == ""


def test_places():
    hosts = ["a", "a", "b", "b", "b", "a"]
    assert fill([0, 1, 2, 3], [0, 1, 2, 3, 4, 5], hosts) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert fill([0, 1, 2, 3], [1, 2, 3, 4, 5], hosts) == {0: 5, 1: 1, 2: 2, 3: 3}
    assert fill([0, 1, 2, 3], [2, 3, 4], hosts) == {0: 4, 2: 2, 3: 3}
    assert fill([5, 1, 2, 3], [1, 2, 3], hosts) == {1: 1, 2: 2, 3: 3}


def test_a_communicator_of_all_ranks_is_refused(monkeypatch):
    mpi = types.SimpleNamespace(COMM_WORLD=types.SimpleNamespace(size=3))
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("MPCHAIN_SPARES", "1")
    monkeypatch.setattr("mpchain.distributed.communicators.load_mpi", lambda: mpi)
    with pytest.raises(RuntimeError, match=r"3 ranks include 1 spare .*: call run_elastic"):
        create_communicator()
