"""The graphs of cuDNN: planned by cuDNN itself for GPUs that are not there.

Each is, besides, the graph that the double makes of the same calls: so what the double computes in
test_cudnn.py is what cuDNN's graph means.
"""

import functools
import itertools
import json
import subprocess
import sys

import pytest

from mpchain.kernels import cudnn
from tests.gpu import cudnn_planner
from tests.gpu.cudnn_planner import GPUS, MODELS, OPERANDS, SMALL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        cudnn_planner.why_absent() is not None, reason=f"{cudnn_planner.why_absent()}"
    ),
]
DTYPES = ["float16", "bfloat16", "float32", "float64"]


def plan(requests, timeout):
    """Returns what cuDNN answers to requests: (GPU, operation, dtype, case)."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.cudnn_planner"],
        input="\n".join(map(json.dumps, requests)),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@functools.cache
def _plans_of_small():
    requests = [*itertools.product(GPUS, OPERANDS, DTYPES, SMALL.values())]
    return requests, plan(requests, 120)


def _check(requests, plans):
    for request, planned in zip(requests, plans, strict=True):
        assert "refused" not in planned, (request, planned)
        assert planned["workspace"] <= planned["limit"], request


def test_small_convolutions_plan():
    _check(*_plans_of_small())


def _meaning(graph):
    """Returns the nodes and tensors of a graph, without names and what is written in two ways."""
    nodes = [{k: v for k, v in node.items() if k != "name"} for node in graph["nodes"]]
    keys = "uid dim stride data_type is_virtual is_pass_by_value".split()
    return nodes, sorted([[x[key] for key in keys] for x in graph["tensors"]])


def test_the_double_makes_the_same_graphs(double):
    import cudnn_double

    for (_, *request), planned in zip(*_plans_of_small(), strict=True):
        graph = cudnn.make_graph(cudnn_double, cudnn_planner.make_request(*request))
        assert _meaning(json.loads(str(graph))) == _meaning(planned["graph"]), request


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", OPERANDS)
def test_convolutions_of_models_plan(operation):
    requests = [*itertools.product(GPUS, [operation], DTYPES, MODELS.values())]
    _check(requests, plan(requests, 500))
