"""Drawings of the graph of a computation, in Graphviz's DOT language."""

import re
from collections.abc import Mapping

from mpchain.function import Function
from mpchain.function_node import FunctionNode
from mpchain.variable import Variable, VariableNode

_VARIABLE_STYLE = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}
_FUNCTION_STYLE = {"shape": "record", "fillcolor": "#6495ED", "style": "filled"}


class ComputationalGraph:
    """A graph whose edges connect functions with the variables that they read and compute.

    Args:
        nodes: list of variable nodes and function nodes.
        edges: list of pairs of nodes: an input and its function, or a function and its output.
        variable_style, function_style: DOT attributes; ``'default'`` or None means the default
            style.
        rankdir: the direction of the arrows, ``'TB'``, ``'BT'``, ``'LR'`` or ``'RL'``.
        remove_variable: draw only functions.
        show_name: put the variables' names before their shapes.

    Raises:
        ValueError: ``rankdir`` is not one of these directions.

    Example:
        >>> y = F.exp(Variable(np.zeros(2)))
        >>> graph = mpchain.computational_graph.build_computational_graph(y)
        >>> [node.label for node in graph.nodes]
        ['(2), float64', 'exp', '(2), float64']
    """

    def __init__(
        self,
        nodes: list,
        edges: list[tuple],
        variable_style: Mapping[str, str] | str | None = None,
        function_style: Mapping[str, str] | str | None = None,
        rankdir: str = "TB",
        remove_variable: bool = False,
        show_name: bool = True,
    ):
        if rankdir not in ("TB", "BT", "LR", "RL"):
            raise ValueError(
                f"build_computational_graph: rankdir must be in TB, BT, LR or RL, not {rankdir!r}"
            )
        self.nodes = nodes
        self.edges = edges
        self.variable_style = _style(variable_style, _VARIABLE_STYLE)
        self.function_style = _style(function_style, _FUNCTION_STYLE)
        self.rankdir = rankdir
        self.remove_variable = remove_variable
        self.show_name = show_name

    def dump(self, format: str = "dot") -> str:
        """Returns the graph as text in the DOT language.

        Args:
            format: ``'dot'``, the only supported format.

        Raises:
            NotImplementedError: ``format`` is not ``'dot'``.
        """
        if format != "dot":
            raise NotImplementedError(
                f"ComputationalGraph.dump: only the format 'dot' is supported, not {format!r}"
            )
        nodes, edges = self._functions_only() if self.remove_variable else (self.nodes, self.edges)
        number = {node: i for i, node in enumerate(nodes)}
        statements = [f"rankdir={self.rankdir};"]
        statements += [f"{i} [{self._attributes(node)}];" for node, i in number.items()]
        statements += [f"{number[tail]} -> {number[head]};" for tail, head in edges]
        return "digraph graphname{" + "".join(statements) + "}"

    def _functions_only(self):
        creators, users = {}, {}
        for tail, head in self.edges:
            if isinstance(head, VariableNode):
                creators[head] = tail
            else:
                users.setdefault(tail, []).append(head)
        functions = [node for node in self.nodes if not isinstance(node, VariableNode)]
        edges = [(f, user) for variable, f in creators.items() for user in users.get(variable, ())]
        return functions, list(dict.fromkeys(edges))

    def _attributes(self, node):
        label = node.label
        if isinstance(node, VariableNode):
            style = self.variable_style
            if self.show_name and node.name is not None:
                label = f"{node.name}: {label}"
        else:
            style = self.function_style
            # The drawing shows the name of the public function, such as linear.
            label = label.removesuffix("_with_bias")
        special = r'(["\\{}|<>])' if style.get("shape") in ("record", "Mrecord") else r'(["\\])'
        attributes = {"label": re.sub(special, r"\\\1", label), **style}
        return ",".join(f'{key}="{value}"' for key, value in attributes.items())


def _style(style, default) -> Mapping[str, str]:
    return default if style is None or style == "default" else style


def build_computational_graph(
    outputs: object,
    remove_split: bool = True,
    variable_style: Mapping[str, str] | str | None = "default",
    function_style: Mapping[str, str] | str | None = "default",
    rankdir: str = "TB",
    remove_variable: bool = False,
    show_name: bool = True,
) -> ComputationalGraph:
    """Builds the graph of all variables and functions that outputs were computed from.

    Args:
        outputs: a Variable, a variable node, a function, or a list or tuple of these.
        remove_split: must be True.
        variable_style, function_style: DOT attributes of variables and functions; ``'default'`` or
            None means the default style.
        rankdir: the direction of the arrows, ``'TB'``, ``'BT'``, ``'LR'`` or ``'RL'``.
        remove_variable: draw only functions.
        show_name: put the variables' names before their shapes.

    Returns:
        a :class:`ComputationalGraph`, whose ``dump()`` returns the DOT text.

    Raises:
        ValueError: ``remove_split`` is not True, or ``rankdir`` is not one of these directions.
        TypeError: an output is not a Variable, a variable node or a function.

    Example:
        >>> y = Variable(np.zeros((2, 3), np.float32)) + 1
        >>> text = build_computational_graph(y).dump()  # Graphviz's command "dot" draws this text
    """
    if not remove_split:
        raise ValueError("build_computational_graph: remove_split must be True")
    if not isinstance(outputs, (list, tuple)):
        outputs = [outputs]
    nodes, edges = _collect([_node(output) for output in outputs])
    return ComputationalGraph(
        nodes, edges, variable_style, function_style, rankdir, remove_variable, show_name
    )


def _node(output):
    if isinstance(output, (Variable, Function)):
        return output.node
    if not hasattr(output, "label"):
        raise TypeError(
            "build_computational_graph: outputs must be Variables or functions, "
            f"not {type(output).__name__}"
        )
    return output


def _shown(function):
    """Returns the object that describes a function: by default, the function itself."""
    creator = function.creator()
    return creator if isinstance(creator, FunctionNode) else function


def _collect(outputs):
    """Returns the nodes that the outputs depend on, and the edges between them."""
    # An output of a function has several nodes if its variable was freed and made again.
    shown = {}
    nodes, edges, stack = [], {}, []

    def show(node):
        place = node
        if isinstance(node, VariableNode) and node.creator_node is not None:
            place = node.creator_node, node.output_index
        if place not in shown:
            shown[place] = node
            nodes.append(node)
            stack.append(node)
        return shown[place]

    for output in outputs:
        show(output)
    while stack:
        node = stack.pop()
        if isinstance(node, VariableNode):
            sources = () if node.creator_node is None else (_shown(node.creator_node),)
        else:
            sources = node.inputs or ()
        for source in sources:
            edges[show(source), node] = None
    return nodes, list(edges)
