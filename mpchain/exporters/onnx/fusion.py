"""Replaces groups of nodes by single nodes that runtimes compute faster."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mpchain.exporters.onnx.graph import Graph


def fused(graph: Graph, nodes: Sequence[tuple]) -> list[tuple]:
    """Returns fewer nodes that compute the same outputs.

    (x - mean) * scale + shift of channels becomes ``BatchNormalization``, which runtimes merge with
    the preceding convolution. A bias that is added to a convolution becomes the convolution's own.

    >>> graph, c = Graph(), np.ones((1, 3), np.float32)
    >>> graph.ranks["x"] = 2
    >>> y = graph.add("Add", graph.add("Mul", graph.add("Sub", "x", c), c * 2), c * 3)
    >>> [node[0] for node in fused(graph, graph.nodes)]
    ['BatchNormalization']
    """
    uses = Counter(name for node in nodes for name in node[1])
    makers = {name: node for node in nodes for name in node[2]}
    replaced, dropped = {}, set()
    for node in nodes:
        name = node[2][0]
        bias = _chain(graph, makers, uses, node, ["Add"])
        convolution = makers.get(bias[0]) if bias else None
        if bias and convolution and convolution[0].startswith("Conv") and len(convolution[1]) == 2:
            if uses[bias[0]] == 1:
                b = graph.constant(graph.constants[bias[1]].reshape(-1))
                operator, inputs, _, *rest = convolution
                replaced[name] = (operator, [*inputs, b], node[2], *rest)
                dropped.add(bias[0])
            continue
        chain = _chain(graph, makers, uses, node, ["Add", "Mul", "Sub"])
        if chain is None:
            continue
        x, *constants = chain
        mean, scale, shift = (graph.constants[name].reshape(-1) for name in constants)
        inputs = [graph.constant(array) for array in (scale, shift, mean, np.ones_like(mean))]
        replaced[name] = ("BatchNormalization", [x, *inputs], node[2], {"epsilon": 0.0}, node[4])
        middle = makers[node[1][0]]
        dropped |= {middle[2][0], middle[1][0]}
    return [replaced.get(node[2][0], node) for node in nodes if node[2][0] not in dropped]


def _chain(graph, makers, uses, node, operators):
    """Returns the names of x and of the per-channel constants if the node ends a chain of the
    given operators; otherwise None.

    ``operators`` are in the order from last to first, the returned constants from first to last.
    """
    constants, x = [], ""
    for operator in operators:
        if node is None or node[0] != operator or (constants and uses[node[2][0]] != 1):
            return None
        x, constant = node[1]
        constants.append(constant)
        node = makers.get(x)
    shapes = [getattr(graph.constants.get(name), "shape", None) for name in constants]
    shape = shapes[0]
    if shape is None or any(s != shape for s in shapes) or graph.ranks.get(x) != len(shape):
        return None
    of_channels = len(shape) > 1 and all(n == 1 for axis, n in enumerate(shape) if axis != 1)
    return (x, *constants[::-1]) if of_channels else None
