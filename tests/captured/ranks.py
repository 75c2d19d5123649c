"""Runs cases of the tables as steps of a multi-node optimizer, on ranks with different data.

Parameters are added to the arrays of a function, and the gradients of these parameters are
averaged. Several rows of functions form one step. If this step is not replayed, each row is judged
by itself.
"""

import itertools
from collections.abc import Callable

import numpy as np

import mpchain
import mpchain.functions as F
from mpchain import Variable, optimizers
from mpchain.distributed import create_multi_node_optimizer
from mpchain.distributed.communicators import Communicator
from mpchain.link import Link
from tests.captured.tables import REFUSED, REPLAYED, WRONG, Case, Outcome, judge, state_of, terms_of

N_ROWS = 16  # the number of functions in one step


def judge_on_ranks(cases: list[Case], has_equal_data: bool, comm: Communicator) -> list[Outcome]:
    """Returns the outcomes of cases, which are the same on all ranks."""
    outcomes = {}
    rows = [case for case in cases if case.row is not None]
    for i in range(0, len(rows), N_ROWS):
        outcome = _outcome(rows[i : i + N_ROWS], has_equal_data, comm)
        if outcome.kind == REPLAYED:
            outcomes.update((case.id, outcome) for case in rows[i : i + N_ROWS])
    return [outcomes.get(case.id) or _outcome([case], has_equal_data, comm) for case in cases]


def _outcome(cases, has_equal_data, comm):
    """Returns the worst outcome of all ranks."""
    case = _together(cases, comm)
    outcomes = comm.allgather_obj(judge(case, has_equal_data, rank=comm.rank))
    for kind in (WRONG, REFUSED, REPLAYED):
        ranks = [rank for rank, outcome in enumerate(outcomes) if outcome.kind == kind]
        if ranks:
            break
    kind, detail = outcomes[ranks[0]]
    return Outcome(kind, detail if len(ranks) == comm.size else f"on ranks {ranks} alone: {detail}")


def _together(cases, comm):
    """Returns a case that runs several rows of functions, or a training, as a step of a multi-node
    optimizer."""

    def set_up(rule, link):
        vars(comm).pop("n_draw_keys", None)  # both runs draw the same numbers
        if not any(True for _ in link.params()):
            with link.init_scope():
                link.own = mpchain.Parameter(np.ones(1))
        return create_multi_node_optimizer(rule, comm).setup(link)

    def make():
        training = cases[0].training
        made = _moved_by_parameters(cases, set_up) if training is None else training(set_up)
        compute, optimizer, state = made
        return _step_of(compute, optimizer), state

    return cases[0]._replace(
        name=" and ".join(case.name for case in cases),
        make=make,
        draw=lambda seed: [x for case in cases for x in case.draw(seed)],
    )


def _step_of(compute, optimizer):
    def step(*arrays):
        results = []

        def loss():
            found, loss = compute(*arrays)
            results[:] = [found]
            if loss is None or not loss.requires_grad:
                loss = F.sum(next(optimizer.target.params()))
            return loss

        optimizer.update(loss)
        return results[0]

    return step


def _moved_by_parameters(cases: list[Case], set_up: Callable) -> tuple:
    """Returns a training of functions of arrays: parameters that begin at zero are added to the
    arrays."""
    link, params = Link(), []
    sizes = [len(case.draw(0)) for case in cases]
    with link.init_scope():
        for i, case in enumerate(cases):
            params.append([])
            for j, x in enumerate(case.row[1](0)):
                param = mpchain.Parameter(np.zeros_like(x)) if x.dtype.kind == "f" else None
                setattr(link, f"p{i}_{j}", param)
                params[-1].append(param)
    functions = [(case.row[0], case.row[2]) for case in cases]

    def compute(*arrays):
        found, losses, rest = [], [], iter(arrays)
        for (function, order), own, size in zip(functions, params, sizes):
            given = list(itertools.islice(rest, size))
            moved = [_moved(param, x) for param, x in zip(own, given)]
            *results, terms = terms_of(function, moved, given[len(own) :], order)
            found.append(results)
            losses += [F.cast(term, np.float64) for term in terms]
        return found, F.add(np.zeros(()), *losses) if losses else None

    # Parameters of a distribution must stay valid: probabilities sum to one, scales are positive.
    rate = 0.0 if cases[0].table == "distributions" else 1e-4
    return compute, set_up(optimizers.SGD(rate), link), state_of(link)


def _moved(param, x):
    return Variable(x, requires_grad=False) if param is None else param + x
