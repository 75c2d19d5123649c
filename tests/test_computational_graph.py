"""Tests drawings of computational graphs."""

import re

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.computational_graph import ComputationalGraph, build_computational_graph
from mpchain.function import Function


@pytest.fixture
def x():
    return Variable(np.ones((2, 3), np.float32), name="x")


def _parsed(text):
    """Parses DOT text; returns attributes by node number, and pairs of connected labels."""
    assert re.fullmatch(
        r'digraph graphname\{rankdir=\w\w;(\d+ (\[(\w+="[^"]*",?)+\]|-> \d+);)*\}', text
    )
    nodes = {
        int(number): dict(re.findall(r'(\w+)="([^"]*)"', attributes))
        for number, attributes in re.findall(r"(\d+) \[(.*?\")\];", text)
    }
    edges = [(int(a), int(b)) for a, b in re.findall(r"(\d+) -> (\d+);", text)]
    labels = sorted((nodes[a]["label"], nodes[b]["label"]) for a, b in edges)
    return nodes, labels


def test_nodes_and_edges(x):
    w = Variable(np.ones(3, np.float64))
    y = F.relu(F.cast(x, np.float64) * w) + w
    nodes, labels = _parsed(build_computational_graph([y]).dump())
    big, small = "(2, 3), float64", "(3), float64"
    assert labels == sorted(
        [
            ("x: (2, 3), float32", "cast"),
            ("cast", big),
            (big, "multiply"),
            (small, "multiply"),
            ("multiply", big),
            (big, "relu"),
            ("relu", big),
            (big, "add"),
            (small, "add"),
            ("add", big),
        ]
    )
    kinds = {label["label"]: label for label in nodes.values()}
    assert kinds["relu"] == {
        "label": "relu",
        "shape": "record",
        "fillcolor": "#6495ED",
        "style": "filled",
    }
    assert kinds[small] == {
        "label": small,
        "shape": "octagon",
        "fillcolor": "#E0E0E0",
        "style": "filled",
    }
    assert len(nodes) == 10 and list(nodes) == list(range(10))


def test_the_text_is_the_same_for_the_same_computation(x):
    def text():
        return build_computational_graph([F.sum(x * x), F.exp(x)]).dump()

    assert text() == text()


def test_a_variable_used_twice_is_drawn_once(x):
    _, labels = _parsed(build_computational_graph(x * x).dump())
    assert labels.count(("x: (2, 3), float32", "multiply")) == 1
    shared = F.exp(x)
    nodes, _ = _parsed(build_computational_graph([F.sum(shared), F.tanh(shared)]).dump())
    assert [n["label"] for n in nodes.values()].count("exp") == 1


def test_outputs_of_any_kind(x):
    class OldStyle(Function):
        def forward(self, inputs):
            return (inputs[0] * 2,)

    y = OldStyle()(x)
    expected = build_computational_graph([y]).dump()
    assert '[label="OldStyle"' in expected
    for output in (y, (y,), [y.node]):
        assert build_computational_graph(output).dump() == expected
    for function in (y.creator, y.creator_node):
        nodes, labels = _parsed(build_computational_graph([function]).dump())
        assert labels == [("x: (2, 3), float32", "OldStyle")] and len(nodes) == 2


def test_a_leaf_alone(x):
    graph = build_computational_graph(x)
    assert graph.nodes == [x.node] and graph.edges == []


def test_only_what_leads_to_the_outputs(x):
    a, b = F.split_axis(x, [1], 1)
    F.exp(a)
    nodes, labels = _parsed(build_computational_graph([F.sum(b)]).dump())
    assert ("split", "(2, 2), float32") in labels and ("split", "(2, 1), float32") not in labels
    assert not any(n["label"] == "exp" for n in nodes.values())


def test_the_graph_of_a_gradient(x):
    y = F.sum(F.exp(x))
    (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
    del y
    graph = build_computational_graph([gx])
    nodes, labels = _parsed(graph.dump())
    assert ("exp", "(2, 3), float32") in labels
    assert [n["label"] for n in nodes.values()].count("exp") == 1
    assert labels.count(("exp", "(2, 3), float32")) == 1


def test_a_variable_that_was_made_again_is_drawn_once(x):
    class SinCos(mpchain.FunctionNode):
        def forward(self, inputs):
            self.retain_outputs((1,))
            return np.sin(inputs[0]), np.cos(inputs[0])

        def backward(self, target_input_indexes, grad_outputs):
            (cos,) = self.get_retained_outputs()
            return (cos * grad_outputs[0],)

    sin = SinCos().apply((x,))[0]  # the variable of the other output has been deleted
    gradients = [mpchain.grad([sin], [x], enable_double_backprop=True)[0] for _ in range(2)]
    _, labels = _parsed(build_computational_graph(gradients).dump())
    assert labels.count(("SinCos", "(2, 3), float32")) == 1


def test_functions_alone(x):
    y = F.relu(x * x) + x
    text = build_computational_graph([y, F.sum(y)], remove_variable=True).dump()
    nodes, labels = _parsed(text)
    assert [n["label"] for n in nodes.values()].count("add") == 1 and len(nodes) == 4
    assert labels == [("add", "sum"), ("multiply", "relu"), ("relu", "add")]


def test_styles_direction_and_names(x):
    y = F.exp(x)
    y.name = "y"
    graph = build_computational_graph(
        [y],
        variable_style={"shape": "box"},
        function_style={"color": "red"},
        rankdir="LR",
        show_name=False,
    )
    assert isinstance(graph, ComputationalGraph)
    assert graph.dump().startswith("digraph graphname{rankdir=LR;")
    nodes, _ = _parsed(graph.dump())
    assert sorted(map(str, nodes.values())) == sorted(
        map(
            str,
            [{"label": "(2, 3), float32", "shape": "box"}] * 2 + [{"label": "exp", "color": "red"}],
        )
    )
    named, _ = _parsed(build_computational_graph([y]).dump())
    assert {n["label"] for n in named.values()} >= {"x: (2, 3), float32", "y: (2, 3), float32"}


def test_special_characters_are_escaped():
    class Odd(mpchain.FunctionNode):
        label = 'a|b "c" {d}'

        def forward(self, inputs):
            return inputs

    x = Variable(np.ones(()), name='the "x"|')
    (y,) = Odd().apply((x,))
    text = build_computational_graph([y]).dump()
    assert r'[label="a\|b \"c\" \{d\}",' in text
    assert r'[label="the \"x\"|: float64",' in text


def test_wrong_arguments(x):
    with pytest.raises(ValueError, match="build_computational_graph: remove_split must be True"):
        build_computational_graph(x, remove_split=False)
    with pytest.raises(
        ValueError,
        match="build_computational_graph: rankdir must be in TB, BT, LR or RL, not 'XX'",
    ):
        build_computational_graph(x, rankdir="XX")
    with pytest.raises(
        TypeError,
        match="build_computational_graph: outputs must be Variables or functions, not ndarray",
    ):
        build_computational_graph([x.array])
    with pytest.raises(
        NotImplementedError,
        match=r"ComputationalGraph\.dump: only the format 'dot' is supported, not 'svg'",
    ):
        build_computational_graph(x).dump("svg")
