"""Converts two records of a model's functions to the nodes of a graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain.backends.cuda import to_cpu
from mpchain.backends.dtypes import is_floating
from mpchain.exporters.onnx import formulas, functions, windows
from mpchain.exporters.onnx.functions import EXPANDED, NOT_EXPRESSIBLE, POSITIONS
from mpchain.exporters.onnx.graph import Graph, Untraceable, Value
from mpchain.exporters.onnx.tracing import Application, Dim, Tracer, address
from mpchain.functions.declaring.declaration import Application as DeclaredNode
from mpchain.variable import Variable

CONVERTERS = functions.CONVERTERS | windows.CONVERTERS
"""Maps the name of a declared function to the converter that adds its nodes."""

_CONSTANT = object()
"""Stands for the output of a function whose inputs are constants."""


class Conversion:
    """Converts functions, in the order in which they were applied.

    >>> Conversion(Graph(), 2).graph.nodes
    []

    Args:
        graph: receives the nodes.
        batch: the batch size of the first record; None if the batch size is fixed.
    """

    def __init__(self, graph: Graph, batch: int | None) -> None:
        self.graph, self.batch = graph, batch
        # This dict maps a function and an output index to the output's name in the graph, or to the
        # output's faults.
        self.made: dict[tuple, Any] = {}
        # For each record, a dict maps the address of an array to the array's name in the graph.
        self.known: tuple[dict, dict] = ({}, {})
        self.kept: list[Any] = []  # references keep the known addresses from being reused

    def add_input(self, name: str, first: Variable, second: Variable) -> Value:
        """Makes two corresponding Variables an input of the graph."""
        self._know(name, first.array, second.array)
        for variable in (first, second):
            self.made[id(variable.node), None] = name
        self.kept += [first, second]
        return Value(self.graph, name, self._shape(first.array, second.array), first.dtype)

    def _know(self, name, *arrays):
        self.kept += arrays
        for known, array in zip(self.known, arrays):
            if address(array) is not None:
                known[address(array)] = name

    def convert(self, first: Sequence[Application], second: Sequence[Application]) -> None:
        """Adds the nodes of two records.

        Raises:
            NotImplementedError: the records differ: which functions are applied depends on the
                values of the inputs or on the batch size.
        """
        labels = [[application.label for application in record] for record in (first, second)]
        if labels[0] != labels[1]:
            n = next((i for i, (a, b) in enumerate(zip(*labels)) if a != b), min(map(len, labels)))
            what = " and ".join(record[n] if n < len(record) else "nothing" for record in labels)
            raise NotImplementedError(
                "exporters.onnx.export: the model applies other functions to another batch "
                f"({what} at position {n}), and ONNX has one graph for all"
            )
        self.kept += [first, second]
        for both in zip(first, second):
            try:
                outputs = self._converted(*both)
            except Untraceable as error:
                outputs = {f"{both[0].label} at {both[0].path}": str(error)}
            except _Poisoned as error:
                outputs = error.args[0]
            self._register(both, outputs)

    def _register(self, both, outputs):
        """Stores the names of a function's outputs, or that they are constant, or their faults."""
        if both[0].output is not None:
            if outputs is not _CONSTANT:
                self._know(outputs, *(application.output for application in both))
            return
        names = outputs if isinstance(outputs, list) else [outputs]
        for application in both:
            for i in range(application.function.n_outputs):
                self.made[id(application.function), i] = names[i if len(names) > 1 else 0]

    def _converted(self, first, second):
        self.graph.path = first.path
        values, faults = [], {}
        for i in range(len(first.in_data)):
            try:
                values.append(self._input(first, second, i))
            except _Poisoned as error:
                faults |= error.args[0]
        if faults:
            raise _Poisoned(faults)
        constants = self._constants(first, second)
        if all(x.array is not None for x in values) and not _holds_values(constants):
            return _CONSTANT
        if first.function == "get_item":
            return CONVERTERS["get_item"](self.graph, values[0], *constants)
        if isinstance(first.function, str) and first.function in POSITIONS:
            return POSITIONS[first.function](self.graph, *values, *constants)
        if first.output is not None:
            return formulas.of_integers(self.graph, first.function, values, constants)
        declaration = getattr(first.function, "declaration", None)
        if not isinstance(first.function, DeclaredNode) or declaration is None:
            raise Untraceable("the program's own code computes it, not a formula of mpchain")
        name = first.label if declaration.is_own else None
        if name in CONVERTERS:
            operands = [values] if declaration.takes_sequence else values
            return CONVERTERS[name](self.graph, *operands, *constants)
        if name in EXPANDED:
            return self._expanded(EXPANDED[name], declaration, values, (first, second))
        if name in NOT_EXPRESSIBLE:
            raise Untraceable(NOT_EXPRESSIBLE[name])
        if declaration.is_elementwise:
            return formulas.converted(self.graph, declaration, values, constants)
        raise Untraceable("it is no elementwise formula; compose it from mpchain's functions")

    def _input(self, first, second, i):
        """Returns an input of a function as a value."""
        arrays = first.in_data[i], second.in_data[i]
        name = None
        nodes = [first.node, second.node]
        if first.output is None and first.function.inputs is not None:
            nodes = [application.function.inputs[i] for application in (first, second)]
        if nodes[0] is not None:
            keys = [_key_of(node) for node in nodes]
            found = [self.made.get(key) for key in keys]
            if found[0] is not None and found[0] is not _CONSTANT:
                name = found[0]
                if isinstance(name, dict):
                    raise _Poisoned(name)
                self._know(name, *arrays)
        return self._value(name, *arrays)

    def _value(self, name, first, second):
        """Returns two corresponding arrays as a value: a named one, a known one, or a constant."""
        if name is None:
            found = [known.get(address(x)) for known, x in zip(self.known, (first, second))]
            name = found[0] if found[0] == found[1] else None
            if isinstance(name, dict):
                raise _Poisoned(name)
        if name is not None:
            self.graph.ranks[name] = first.ndim
            return Value(self.graph, name, self._shape(first, second), first.dtype)
        return self._constant(first, second)

    def _shape(self, first, second):
        if first.ndim != second.ndim:
            raise Untraceable("the number of axes of an input depends on the batch size")
        return tuple(self._number(a, b) for a, b in zip(first.shape, second.shape))

    def _number(self, a, b):
        if a == b or (a != a and b != b):
            return a
        dim = Dim.of(a, b, self.batch)
        if dim is None:
            raise Untraceable(f"a constant is {a} for one input and {b} for another")
        return dim

    def _constant(self, first, second):
        """Returns two arrays as one constant, whose shape may depend on the batch size."""
        first, second = to_cpu(first), to_cpu(second)
        if first.shape == second.shape and np.array_equal(
            first, second, equal_nan=is_floating(first.dtype)
        ):
            label = self.graph.constant(first)
            return Value(self.graph, label, first.shape, first.dtype, first)
        shape = self._shape(first, second)
        axes = [i for i, n in enumerate(shape) if isinstance(n, Dim)]
        one = first
        for axis in axes:
            one = one.take([0], axis) if one.size else one
        if axes and one.size and all((x == one).all() for x in (first, second)):
            name = self.graph.expand(one, one.shape, shape)
            return Value(self.graph, name, shape, first.dtype, fill=one)
        if axes == [0] and first.ndim == 1:
            if all((x == np.arange(len(x))).all() for x in (first, second)):
                zero, one = (self.graph.constant(n, np.int64) for n in (0, 1))
                end = self.graph.squeeze(self.graph.integers(shape), 0)
                name = self.graph.cast(self.graph.add("Range", zero, end, one), first.dtype)
                return Value(self.graph, name, shape, first.dtype)
        raise Untraceable(
            f"an array of shape {first.shape} that it is given depends on the values of the inputs "
            "or on random numbers, other than by functions of Variables"
        )

    def _constants(self, first, second) -> Any:
        try:
            return self._paired(tuple(first.constants), tuple(second.constants))
        except RecursionError:
            raise Untraceable("an argument cannot be compared") from None

    def _paired(self, a, b) -> Any:
        """Merges two corresponding arguments into one, which may contain values and Dims."""
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            value = self._value(None, a, b)
            return value if value.array is None else value.array
        if isinstance(a, (bool, str, type(None), np.dtype, type)) or callable(a):
            if type(a) is not type(b) or (not callable(a) and a != b):
                raise Untraceable(f"an argument is {a!r} for one input and {b!r} for another")
            return a
        if isinstance(a, (int, float, np.generic)):
            number = a.item() if isinstance(a, np.generic) else a
            return self._number(number, b.item() if isinstance(b, np.generic) else b)
        if isinstance(a, slice):
            return slice(*self._paired((a.start, a.stop, a.step), (b.start, b.stop, b.step)))
        if isinstance(a, (tuple, list)) and len(a) == len(b):
            items = [self._paired(x, y) for x, y in zip(a, b)]
            return type(a)(*items) if hasattr(a, "_fields") else type(a)(items)
        if a is b or (type(a) is type(b) and not isinstance(a, (tuple, list))):
            return a
        raise Untraceable("an argument depends on the batch size")

    def _expanded(self, body, declaration, values, both):
        """Converts the functions that the body of a composed function calls with Variables."""
        records, results = [], []
        for application in both:
            tracer = Tracer()
            inputs = [Variable(x) for x in application.in_data]
            for variable, value in zip(inputs, values):
                self.made[id(variable.node), None] = (
                    value.name if value.array is None else _CONSTANT
                )
            self.kept.append(inputs)
            with tracer.recording(application.path):
                operands = [inputs] if declaration.takes_sequence else inputs
                result = (body or declaration.body)(*operands, *application.constants)
            if body is None and declaration.has_aux:
                result = result[0]
            results.append(list(result) if isinstance(result, tuple) else [result])
            records.append(tracer.applications)
        self.convert(*records)
        names = [self._value_of(*outputs).name for outputs in zip(*results)]
        self.kept.append(results)
        return names

    def _value_of(self, first, second):
        """Returns two corresponding Variables as a value."""
        name = self.made.get(_key_of(first.node))
        if isinstance(name, dict):
            raise _Poisoned(name)
        value = self._value(None if name is _CONSTANT else name, first.array, second.array)
        self.graph.name_of(value)
        return value

    def output(self, first: Variable, second: Variable, name: str) -> Value:
        """Makes two corresponding Variables an output of the graph.

        Raises:
            NotImplementedError: ONNX cannot express a function that the output depends on.
        """
        try:
            value = self._value_of(first, second)
        except _Poisoned as error:
            faults = "; ".join(f"{what}: {why}" for what, why in error.args[0].items())
        except Untraceable as error:
            faults = f"the output {name}: {error}"
        else:
            self.graph.path = "/"
            self.graph.nodes.append(("Identity", [value.name], [name], {}, "/"))
            return Value(self.graph, name, value.shape, value.dtype)
        raise NotImplementedError(
            f"exporters.onnx.export: ONNX cannot express what the model computes: {faults}"
        )


class _Poisoned(Exception):
    """An input depends on functions that cannot be exported. The argument of the exception maps the
    functions to the reasons."""


def _key_of(node):
    if node.creator_node is None:
        return id(node), None
    return id(node.creator_node), node.output_index


def _holds_values(constants):
    if isinstance(constants, (tuple, list)):
        return any(map(_holds_values, constants))
    return isinstance(constants, (Value, Dim))
