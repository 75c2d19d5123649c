"""Reads ONNX models as links."""

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Any

from mpchain.backends.dtypes import is_floating
from mpchain.exporters.onnx.exporting import library
from mpchain.exporters.onnx.operators import OPERATORS
from mpchain.link import Chain, Link
from mpchain.typing import Input
from mpchain.variable import Parameter, Variable


class ONNXModel(Chain):
    """An ONNX model as a link, which can be trained, saved and exported again.

    Its parameters are the floating-point constants with at least one axis, except for statistics of
    batch normalization; its child links are named after parts of these constants' names. The link
    computes in inference mode: dropout is left out, and batch normalization uses fixed statistics.

        >>> x = np.ones((5, 3), np.float32)
        >>> made = mpchain.onnx.export(L.Linear(3, 2), x)  # doctest: +SKIP
        >>> model = mpchain.onnx.ONNXModel(made)  # doctest: +SKIP
        >>> model(x).shape  # doctest: +SKIP
        (5, 2)

    Args:
        file: a path, or the model: an ``onnx.ModelProto``.

    Attributes:
        input_names, output_names (list): names of the inputs and outputs.

    Raises:
        OSError: the file cannot be read.
        ImportError: the library onnx is not installed.
        NotImplementedError: the model uses unsupported operators; the message lists them.
        ValueError: the file is not an ONNX model, or a node is invalid; the message names the node.
    """

    def __init__(self, file: Any) -> None:
        super().__init__()
        onnx = library()
        self._file = "the model" if hasattr(file, "graph") else os.fspath(file)
        graph = (file if hasattr(file, "graph") else _load(onnx, self._file)).graph
        domains = {node.domain for node in graph.node} - {"", "ai.onnx"}
        unknown = {node.op_type for node in graph.node} - OPERATORS.keys()
        if domains or unknown:
            raise NotImplementedError(
                "ONNXModel: these operators are not known here: "
                + ", ".join(sorted(domains | unknown))
            )
        self.nodes = []
        for i, node in enumerate(graph.node):
            with self._reading(i, node.op_type, node.name, ValueError):
                self.nodes.append((*_node(onnx, node), node.name))
        self.constants: dict[str, Any] = {}
        self._places: dict[str, tuple[Link, str]] = {}
        statistics = {
            name
            for operator, inputs, *_ in self.nodes
            for name in inputs[3:]
            if operator == "BatchNormalization"
        }
        for tensor in graph.initializer:
            with self._reading(tensor.name, "constant", "", ValueError):
                array = onnx.numpy_helper.to_array(tensor)
            if is_floating(array.dtype) and array.ndim and tensor.name not in statistics:
                self._add(tensor.name, array)
            else:
                self.constants[tensor.name] = array
        constants = {tensor.name for tensor in graph.initializer}
        self.input_names = [x.name for x in graph.input if x.name not in constants]
        self.output_names = [y.name for y in graph.output]
        self._check_names(constants | {"", *self.input_names})

    def _check_names(self, known):
        """Raises ValueError if a node uses an array before any node has computed the array."""
        for i, (operator, inputs, outputs, _, name) in enumerate(self.nodes):
            if lacking := sorted(set(inputs) - known):
                raise ValueError(
                    f"ONNXModel: {self._file}, {_label(i, operator, name)}: its input "
                    f"{lacking[0]!r} is no input of the model, no constant, and no output of an "
                    "earlier node"
                )
            known |= set(outputs)
        if lacking := sorted(set(self.output_names) - known):
            raise ValueError(
                f"ONNXModel: {self._file}: no node computes the output {lacking[0]!r} of the model"
            )

    @contextlib.contextmanager
    def _reading(self, number, operator, name, error_class=None):
        """Context manager: exceptions name the file and the node."""
        place = f"{self._file}, {_label(number, operator, name)}"
        try:
            yield
        except Exception as error:
            if error_class is None:
                error.add_note(f"in {place}")
                raise
            raise error_class(
                f"ONNXModel: {place} cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _add(self, name, array):
        """Makes an array a parameter of the link that the array's name contains; creates the link
        if necessary."""
        *parts, last = [re.sub(r"\W", "_", part) for part in re.split("[/.]", name) if part] or [
            "W"
        ]
        link = self
        for part in parts:
            child = vars(link).get(part)
            if not isinstance(child, Chain):
                child, part = Chain(), _unused(link, part)
                link.add_link(part, child)
            link = child
        last = _unused(link, last)
        with link.init_scope():
            setattr(link, last, Parameter(array.copy()))
        self._places[name] = link, last

    def forward(self, *args: Input, **kwargs: Input) -> Any:
        """Computes the outputs of the model.

        Args:
            args, kwargs: the inputs, Variables or arrays, in order or by name.

        Returns:
            Variable, or a tuple of them if the model has several outputs. Integers are arrays.

        Raises:
            TypeError: there are more or fewer inputs than the model has.
        """
        values = dict(zip(self.input_names, args)) | kwargs
        if len(args) + len(kwargs) != len(values) or values.keys() != set(self.input_names):
            raise TypeError(
                f"ONNXModel: the inputs are {', '.join(self.input_names)}, but got "
                f"{len(args)} by position, and by name {', '.join(kwargs) or 'none'}"
            )
        values = {name: _as_value(x) for name, x in values.items()} | self.constants
        values |= {
            name: link[at] if isinstance(link, Chain) else getattr(link, at)
            for name, (link, at) in self._places.items()
        }
        for i, (operator, inputs, outputs, attributes, name) in enumerate(self.nodes):
            operands = [values[name] if name else None for name in inputs]
            with self._reading(i, operator, name):
                made = OPERATORS[operator](*operands, **attributes)
            values.update(zip(outputs, made if isinstance(made, (tuple, list)) else [made]))
        results = [values[name] for name in self.output_names]
        return tuple(results) if len(results) > 1 else results[0]


def _load(onnx, path):
    if not os.path.isfile(path):  # reading a pipe could wait forever
        raise FileNotFoundError(f"ONNXModel: {path} is no file")
    try:
        return onnx.load(path)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # protobuf and the checks of external data raise many classes
        raise ValueError(
            f"ONNXModel: {path} is no ONNX model: {type(error).__name__}: {error}"
        ) from error


def _label(number, operator, name):
    if operator == "constant":
        return f"constant {number}"
    return f"node {number} ({', '.join(filter(None, [operator, name]))})"


def _unused(link, name):
    while hasattr(link, name):
        name += "_"
    return name


def _as_value(x):
    """Returns floating point inputs as Variables, and integers as arrays."""
    array = x.array if isinstance(x, Variable) else x
    if not is_floating(array.dtype):
        return array
    return x if isinstance(x, Variable) else Variable(x, requires_grad=False)


def _node(onnx, node):
    attributes: Mapping[str, Any] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value)
        attributes = {**attributes, attribute.name: value}
    if node.op_type == "Cast":
        dtype = onnx.helper.tensor_dtype_to_np_dtype(attributes["to"])
        attributes = {"to": dtype}
    if node.op_type in ("Split", "Dropout"):
        attributes = {**attributes, "n_outputs": len(node.output)}
    return node.op_type, list(node.input), list(node.output), attributes
