"""Tests that cuDNN can plan mpchain's graphs for GPUs that are not present.

Each graph must also equal the graph that the double makes from the same calls, so what the double
computes in test_cudnn.py is what cuDNN's graph means.
"""

import itertools
import json
import struct
import subprocess
import sys

import pytest

from mpchain.kernels.gpu import cudnn
from tests.gpu import cudnn_planner
from tests.gpu.cudnn_planner import ATTENTION, GPUS, LINEAR, MODELS, NORMALIZATIONS, OPERANDS, SMALL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        cudnn_planner.why_absent() is not None, reason=f"{cudnn_planner.why_absent()}"
    ),
]
DTYPES = ["float16", "bfloat16", "float32", "float64"]


def plan(requests, timeout):
    """Returns cuDNN's answers to requests: (GPU, operation, dtype, case)."""
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


def _check(requests, seconds):
    """Checks that cuDNN plans each request, and that the double makes the same graph; returns the
    nodes of each plan."""
    import cudnn_double

    requests, lowered = [*requests], []
    for request, planned in zip(requests, plan(requests, seconds), strict=True):
        assert "refused" not in planned, (request, planned)
        assert planned["workspace"] <= planned["limit"], request
        graph = cudnn.make_graph(cudnn_double, cudnn_planner.make_request(*request[1:4]))
        graph = json.loads(str(graph))
        assert _meaning(graph) == _meaning(planned["graph"]), request
        by_value = {x["uid"] for x in graph["tensors"] if x["is_pass_by_value"]}
        assert by_value <= {*planned["by_value"]}, request
        lowered.append(planned["lowered"])
    return lowered


def _meaning(graph):
    """Returns the nodes and tensors of a graph, without names and without differences of
    notation."""
    if isinstance(graph["tensors"], dict):  # the graph is not yet in the form of the library
        graph = _as_of_the_library(graph)
    tensors = {x["uid"]: x for x in graph["tensors"]}
    virtual = sorted(uid for uid, x in tensors.items() if x["is_virtual"])
    number = {uid: -virtual.index(uid) - 1 if uid in virtual else uid for uid in tensors}
    nodes = []
    for node in graph["nodes"]:
        nodes.append({k: v for k, v in node.items() if k != "name" and v is not None})
        for key in ("inputs", "outputs"):
            nodes[-1][key] = {port: number[uid] for port, uid in node[key].items()}
    keys = "uid dim stride data_type".split()
    return nodes, sorted([x[k] for k in keys] for x in graph["tensors"] if not x["is_virtual"])


def _as_of_the_library(graph):
    uids = {name: x["uid"] for name, x in graph["tensors"].items()}
    nodes = [
        {
            "tag": node["type"],
            "compute_data_type": graph["context"]["compute_data_type"].removeprefix("data_type."),
            "inputs": {port: uids[name] for port, name in node["inputs"].items()},
            "outputs": {port: uids[name] for port, name in node["outputs"].items()},
            **node["params"],
        }
        for node in graph["nodes"]
    ]
    tensors = [
        {**x, "data_type": x["dtype"].removeprefix("data_type.")} for x in graph["tensors"].values()
    ]
    return {"nodes": nodes, "tensors": tensors}


def test_small_convolutions(double):
    _check(itertools.product(GPUS, OPERANDS, DTYPES, SMALL.values()), 120)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", OPERANDS)
def test_convolutions_of_models(operation, double):
    _check(itertools.product(GPUS, [operation], DTYPES, MODELS.values()), 500)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", NORMALIZATIONS)
def test_normalizations_of_models(operation, double):
    _check(itertools.product(GPUS, [operation], DTYPES[:3], NORMALIZATIONS[operation]), 500)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_products(double):
    _check(itertools.product(GPUS, ["linear"], DTYPES[:2], LINEAR), 500)


@pytest.mark.long
def test_products_of_single_precision_need_the_switch_for_tf32(double):
    single = [(gpu, "linear", "float32", LINEAR[0]) for gpu in GPUS]
    _check([(*request, "always") for request in single], 100)
    assert all("refused" in planned for planned in plan(single, 60))


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", ["attention", "attention_gradient"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name, operation, double):
    shapes = ATTENTION[name]
    (b, h, n, _), (_, _, n_keys, _), _ = shapes
    of_bias = (1, h, n, n_keys) if name == "small" else (b, 1, n, n_keys)
    options = [
        {"is_causal": True},
        {"is_causal": False, "is_deterministic": True},
        {"is_causal": True, "bias": of_bias},
    ]
    lowered = _check_attention(operation, shapes, options)
    assert all(node["dropout_probability"] is None for node in lowered)


def _check_attention(operation, shapes, options, gpus=GPUS):
    cases = [(shapes, each) for each in options]
    lowered = _check(itertools.product(gpus, [operation], DTYPES[:2], cases), 500)
    for (node,), (_, given) in zip(lowered, itertools.cycle(cases)):
        assert node["right_bound"] == (0 if given["is_causal"] else None)
        assert node["diagonal_alignment"] == "TOP_LEFT" and node["left_bound"] is None
        assert not node["padding_mask"]
        assert struct.unpack(">f", bytes.fromhex(node["attn_scale_value"])) == (0.125,)
        assert not node.get("stats_use_log2")
        if operation == "attention_gradient":
            assert node["is_deterministic_algorithm"] == given.get("is_deterministic", False)
    return [node for (node,) in lowered]


SEED, MASK = (0.1, True), (0.1, False)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", ["attention", "attention_gradient"])
@pytest.mark.parametrize("gpu", GPUS)
def test_attention_with_dropout(operation, gpu, double):
    """cuDNN draws the mask from a seed, or reads it; forward also shows the mask that it drew."""
    (b, h, n, _), (_, _, n_keys, _), _ = shapes = ATTENTION["small"]
    options = [
        {"is_causal": True, "dropout": SEED},
        {"is_causal": False, "dropout": SEED, "bias": (b, h, n, n_keys)},
        {"is_causal": True, "dropout": MASK},
        {"is_causal": False, "dropout": MASK, "bias": (1, h, n, n_keys)},
    ]
    if operation == "attention":
        options.append({"is_causal": True, "dropout": SEED, "shows_mask": True})
    else:
        same_bits = {"is_causal": True, "dropout": MASK, "is_deterministic": True}
        if gpu == "H100":
            options.append(same_bits)
        else:  # cuDNN 9.28 has no such plan; mpchain then computes the gradient by products
            (planned,) = plan([(gpu, operation, "float16", (shapes, same_bits))], 60)
            assert "Deterministic" in planned["refused"]
    lowered = _check_attention(operation, shapes, options, [gpu])
    for node, given in zip(lowered, itertools.cycle(options)):
        has_seed = given["dropout"] == SEED
        ratio = node["dropout_probability"]
        assert (ratio is not None) == has_seed
        ports = set(node["inputs"])
        assert ({"Seed", "Offset"} <= ports) == has_seed, ports
        assert ("Dropout_mask" in ports) != has_seed, ports


@pytest.mark.parametrize("dtype", DTYPES[2:])
def test_attention_of_single_and_double_precision_has_no_plan(dtype):
    case = ATTENTION["small"], {"is_causal": True}
    for planned in plan(
        [("H100", "attention", dtype, case), ("B200", "attention", dtype, case)], 60
    ):
        assert "refused" in planned
