"""The graph of an ONNX model under construction."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.exporters.onnx.tracing import Dim, address
from mpchain.typing import Array, DTypeLike


class Untraceable(Exception):
    """A function or an argument cannot be exported; the message says why."""


class Value:
    """An array in the graph: its name, and its shape, which may contain a :class:`Dim`.

    >>> Value(None, "x", (2, 3), np.dtype(np.float32)).ndim
    2

    Attributes:
        graph: the graph that has the array; None for a value without a graph.
        name: the name in the graph.
        array: the array, if it is a constant.
        fill: the array that is repeated, if the value is constant apart from the batch size.
    """

    def __init__(
        self,
        graph: "Graph | None",
        name: str,
        shape: Sequence[Any],
        dtype: DTypeLike,
        array: Any = None,
        fill: Any = None,
    ) -> None:
        self.graph, self.name, self.array, self.fill = graph, name, array, fill
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


class Graph:
    """The nodes and constants of a model under construction.

    >>> graph = Graph()
    >>> graph.add("Add", "x", np.ones(2, np.float32))
    'Add_0'
    >>> [node[:2] for node in graph.nodes]
    [('Add', ['x', 'constant_0'])]

    Args:
        names: names of constants, by the addresses of their arrays.

    Attributes:
        nodes: tuples of operator, names of inputs and of outputs, attributes, and path.
        constants: name to array.
        batch: the name of an input, and the index of its batch axis; None if all sizes are fixed.
        path: the path of the link whose nodes are added.
        ranks: the number of axes of each known array, by name.
    """

    def __init__(self, names: dict[Any, str] | None = None) -> None:
        self.names = names or {}
        self.nodes: list[tuple] = []
        self.constants: dict[str, Array] = {}
        self.batch: tuple[str, int] | None = None
        self.path = "/"
        self.ranks: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._known: dict[tuple, str] = {}
        self._batch_size: str | None = None

    def new_name(self, kind: str) -> str:
        """Returns an unused name."""
        n = self._counts[kind] = self._counts.get(kind, -1) + 1
        return f"{kind}_{n}"

    def add(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """Adds a node with one output, and returns its name; see :meth:`add_many`."""
        return self.add_many(operator, 1, *inputs, **attributes)[0]

    def add_many(self, operator: str, n: int, *inputs: Any, **attributes: Any) -> list[str]:
        """Adds a node.

        Args:
            operator: ONNX's name of the operator.
            n: the number of outputs.
            inputs: names, values, arrays (constants), or None for an omitted input.
            attributes: the attributes of the node; those that are None are left out.

        Returns:
            list: the names of the outputs.
        """
        names = [self.name_of(x) for x in inputs]
        while names and not names[-1]:
            names.pop()
        outputs = [self.new_name(operator) for _ in range(n)]
        attributes = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append((operator, names, outputs, attributes, self.path))
        return outputs

    def name_of(self, x: Any) -> str:
        """Returns the name of an input of a node."""
        if x is None:
            return ""
        if isinstance(x, Value):
            if x.array is not None and x.name not in self.constants:
                self.constants[x.name] = x.array
            return x.name
        return x if isinstance(x, str) else self.constant(x)

    def constant(self, array: object, dtype: DTypeLike = None) -> str:
        """Returns the name of a constant; small constants with equal values share one name."""
        array = np.asarray(array, dtype)
        name = self.names.get(address(array))
        if name is not None:
            self.constants[name] = array
            return name
        key = array.dtype.str, array.shape, array.tobytes() if array.size < 64 else id(array)
        if key not in self._known:
            name = self._known[key] = self.new_name("constant")
            self.constants[name] = array
        return self._known[key]

    def integers(self, numbers: Sequence[Any]) -> str:
        """Returns the name of an int64 vector of numbers, which may be :class:`Dim` objects."""
        if not any(isinstance(n, Dim) for n in numbers):
            return self.constant(list(numbers), np.int64)
        parts = [
            self.number(n, np.int64) if isinstance(n, Dim) else self.constant([n], np.int64)
            for n in numbers
        ]
        return self.add("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    def number(self, dim: Dim, dtype: DTypeLike) -> str:
        """Returns the name of a vector whose one element depends on the batch size."""
        if self._batch_size is None:
            name, axis = self.batch
            self._batch_size = self.add("Shape", name, start=axis, end=axis + 1)
        size = self._batch_size
        kind = np.dtype(dtype)
        if kind != np.int64:
            size = self.add("Cast", size, to=code_of(kind))
        if dim.factor != 1:
            size = self.add("Mul", size, np.array([dim.factor], kind))
        if dim.offset:
            size = self.add("Add", size, np.array([dim.offset], kind))
        return size if dim.exponent == 1 else self.add("Reciprocal", size)

    # The methods below are shortcuts for converters.

    def reshape(self, x: object, shape: Sequence[Any]) -> str:
        """Adds a node that reshapes."""
        shape = list(shape)
        if -1 not in shape and sum(isinstance(n, Dim) for n in shape) == 1 and 0 not in shape:
            shape = [-1 if isinstance(n, Dim) else n for n in shape]
        return self.add("Reshape", x, self.integers(shape), allowzero=1 if 0 in shape else None)

    def expand(self, x: object, have: Sequence[Any], shape: Sequence[Any]) -> str:
        """Adds a node that broadcasts from the shape ``have`` to ``shape``."""
        have = (1,) * (len(shape) - len(have)) + tuple(have)
        return self.add(
            "Expand", x, self.integers([1 if a == b else b for a, b in zip(have, shape)])
        )

    def squeeze(self, x: object, *axes: int) -> str:
        """Adds a node that removes axes."""
        return self.add("Squeeze", x, self.integers(axes))

    def unsqueeze(self, x: object, *axes: int) -> str:
        """Adds a node that inserts axes."""
        return self.add("Unsqueeze", x, self.integers(axes))

    def slice(self, x: object, begin: object, end: object, axis: int, step: int = 1) -> str:
        """Adds a node that takes a slice along an axis."""
        return self.add("Slice", x, *map(self.integers, ([begin], [end], [axis], [step])))

    def cast(self, x: object, dtype: DTypeLike) -> str:
        """Adds a node that converts to a dtype."""
        return self.add("Cast", x, to=code_of(dtype))

    def needed(self, outputs: Sequence[str]) -> list[tuple]:
        """Returns the nodes that the outputs depend on."""
        names, nodes = set(outputs), []
        for node in reversed(self.nodes):
            if names.intersection(node[2]):
                names.update(node[1])
                nodes.append(node)
        return nodes[::-1]


def registering(table: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a function that makes decorators, which put functions into a table under names.

    >>> table = {}
    >>> @registering(table)("a", "b")
    ... def f():
    ...     return 1
    >>> sorted(table)
    ['a', 'b']
    """

    def of(*names):
        def register(function):
            table.update(dict.fromkeys(names, function))
            return function

        return register

    return of


def code_of(dtype: DTypeLike) -> int:
    """Returns ONNX's code for a dtype.

    >>> code_of(np.float32)  # doctest: +SKIP
    1
    """
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
