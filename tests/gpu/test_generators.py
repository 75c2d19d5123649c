"""Tests that draws from other generators do not change CuPy's generators."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain.distributed.optimizers import draws
from mpchain.distributed.optimizers.dry_run import DryRun

pytestmark = pytest.mark.gpu


def _next():
    return mpchain.cuda.cupy.random.normal(size=3).get().tolist()


def _noise():
    return F.dropout(mpchain.get_device("@cupy:0").send(np.ones(8, np.float32))).array.get()


def test_dry_run():
    model = L.Linear(None, 2)
    model.to_device("@cupy:0")
    mpchain.cuda.cupy.random.seed(1)
    expected = _next()
    mpchain.cuda.cupy.random.seed(1)
    with DryRun([model], mpchain.distributed.create_communicator()) as dry_run:
        _noise()
    dry_run.undo()
    assert _next() == expected


def test_micro_shards_draw_by_their_seed():
    mpchain.cuda.cupy.random.seed(1)
    expected = _next()
    mpchain.cuda.cupy.random.seed(1)
    masks = [draws._seeded([1, 2], shard, False, _noise).tolist() for shard in (0, 1, 0)]
    assert masks[0] == masks[2] != masks[1]
    assert _next() == expected
