"""Tests sums in the order of a tree on any device, which have the same bits on any number of
ranks."""

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed import create_communicator, create_multi_node_optimizer
from mpchain.distributed.gradients.deterministic import Tree
from tests.distributed.devices import assert_array_equal, on_device, on_gpus, xp

ON_GPUS = True


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("n_terms", [1, 2, 3, 4, 6, 12])
def test_the_tree_is_fixed(comm, n_terms, more):
    n_terms = n_terms * comm.size + more
    terms = np.random.RandomState(0).uniform(-1, 1, (n_terms, 5)).astype("float32")
    terms = on_device(terms)

    def expected(begin, end):
        middle = (begin + end) // 2
        return terms[begin] if end - begin == 1 else expected(begin, middle) + expected(middle, end)

    tree = Tree(comm, n_terms, lambda: xp.empty(5, "float32"))
    for _ in range(2):
        for i in range(*(n_terms * rank // comm.size for rank in (comm.rank, comm.rank + 1))):
            term = tree.room()
            term[...] = terms[i]
            tree.add(i, term)
        assert_array_equal(tree.sum(), expected(0, n_terms))


def trained(made, n=12):
    """Returns a matrix of parameters after updates on ranks with a reproducible communicator."""
    np.random.seed(1)
    model = on_device(L.Linear(30, 4))
    optimizer = create_multi_node_optimizer(optimizers.Adam(0.01), made).setup(model)
    x = on_device(np.random.uniform(-1, 1, (3, n, 30)).astype("float32"))
    begin, end = made.share_of(n)
    for batch in x:
        optimizer.n_samples = end - begin
        optimizer.update(lambda mine: F.mean(model(mine) ** 2), batch[begin:end])
    return model.W.array


def test_ranks_train_with_the_bits_of_one_process(comm):
    options = {"reproducible": True, "micro_shards": 2 * comm.size}
    with create_communicator("dummy", **options) as alone:
        expected = trained(alone)
    with create_communicator(
        "pure_nccl" if on_gpus() else "naive", comm.mpi_comm, **options
    ) as together:
        assert_array_equal(trained(together), expected)
