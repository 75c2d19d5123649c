"""Writes models as ONNX files."""

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping
from typing import IO, Any

import numpy as np

from mpchain.backends.cuda import to_cpu
from mpchain.exporters.onnx.conversion import Conversion
from mpchain.exporters.onnx.fusion import fused
from mpchain.exporters.onnx.graph import Graph, code_of
from mpchain.exporters.onnx.tracing import Dim, Tracer, address, two_batches
from mpchain.link import Link
from mpchain.parameter_tree import is_array
from mpchain.serializers.files import open_atomic
from mpchain.variable import Variable, as_array

OPSET = 26
"""The version of ONNX's operators: the newest that onnxruntime 1.31 runs."""

_IR_VERSION = 13
_MOST_BYTES = 2**31 - 1  # the size limit of a protocol buffers message


def export(
    model: Callable[..., Any],
    args: object,
    file: str | os.PathLike[str] | IO[bytes] | None = None,
    *,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    batch_axis: int | None = 0,
    graph_name: str = "mpchain",
) -> Any:
    """Writes a model as an ONNX file.

    This function calls the model twice, in inference mode, with batches of two sizes that have
    different values, and converts the functions that the model applies. The graph computes all
    values that depend on the batch size; a constant that depends on the values of the inputs is an
    error. Links with states, such as :class:`mpchain.links.LSTM`, start without state. The model
    must be in host memory.

    Values that are equal in both calls become constants. If the model compares its float inputs
    with a threshold, the example must hold values on both sides of the threshold. A branch that
    only much larger batches take is not exported.

        >>> model = mpchain.Sequential(L.Linear(3, 4), F.relu, L.Linear(4, 2))
        >>> x = np.ones((5, 3), np.float32)
        >>> made = mpchain.onnx.export(model, x, "model.onnx")  # doctest: +SKIP
        >>> [node.op_type for node in made.graph.node]  # doctest: +SKIP
        ['Gemm', 'Relu', 'Gemm']

    Args:
        model: a callable of Variables or arrays that returns a Variable, or a tuple, list or dict
            of them.
        args: the model's input, or a tuple, list or dict (named arguments) of inputs: Variables or
            arrays. The elements of an integer input must not all be equal.
        file: a path, or a file object opened for writing bytes; None writes no file.
        input_names: names of the inputs; None means the keys of a dict, or the names of the model's
            arguments; if these are too few, ``x``, or ``x0``, ``x1``, ... for several inputs.
        output_names: names of the outputs; None means the keys of a dict, or ``output``, or
            ``output_0``, ``output_1``, ... for a tuple or list.
        batch_axis: the axis of all inputs whose size may differ when the ONNX model runs; None
            fixes all sizes.
        graph_name: the name of the graph.

    Returns:
        onnx.ModelProto: the model.

    Raises:
        ImportError: the library onnx is not installed.
        NotImplementedError: ONNX cannot express functions of the model; the message lists them with
            the paths of their links.
        ValueError: an input or name is invalid, or the model is larger than 2 GB.
    """
    onnx = library()
    names, arrays, as_keywords = _inputs(model, args, input_names)
    pairs = [two_batches(x, batch_axis, name) for name, x in zip(names, arrays)]
    graph = Graph(_parameter_names(model, {*names, *(output_names or ())}))
    size = None
    if batch_axis is not None:
        size = _batch_size(arrays, pairs, batch_axis)
        graph.batch = names[0], batch_axis
    tracers = Tracer(model), Tracer(model)
    calls = [
        _call(model, tracer, names, inputs, as_keywords)
        for tracer, inputs in zip(tracers, zip(*pairs))
    ]
    conversion = Conversion(graph, size)
    inputs = []
    for name, variables in zip(names, zip(*(inputs for inputs, _ in calls))):
        inputs.append(conversion.add_input(name, *variables))
    conversion.convert(*(tracer.applications for tracer in tracers))
    keys, outputs = _outputs(calls, output_names)
    results = [conversion.output(a, b, name) for name, (a, b) in zip(keys, outputs)]
    if set(keys) & set(names) or len({*keys}) < len(keys) or len({*names}) < len(names):
        raise ValueError(
            f"exporters.onnx.export: names must be different: inputs {', '.join(names)}, outputs "
            + ", ".join(keys)
        )
    made = _model(onnx, graph, inputs, results, graph_name)
    if file is not None:
        _write(made, file)
    return made


def library():
    try:
        import onnx
    except ImportError:
        raise ImportError(
            "exporters.onnx needs the library onnx: pip install 'mpchain[onnx]'"
        ) from None
    return onnx


def _inputs(model, args, input_names):
    """Returns names and arrays of the inputs, and a list of the keywords by which they are passed;
    None if they are passed by position."""
    as_keywords = isinstance(args, Mapping)
    values = list(args.values()) if as_keywords else list(args) if _is_list(args) else [args]
    if not values or not all(is_array(x) or isinstance(x, Variable) for x in values):
        raise ValueError("exporters.onnx.export: args must hold inputs: Variables or arrays")
    arrays = [to_cpu(as_array(x)) for x in values]
    if as_keywords:
        names = list(args)
    else:
        forward = model.forward if isinstance(model, Link) else model
        try:
            parameters = inspect.signature(forward).parameters.values()
        except (TypeError, ValueError):
            parameters = ()
        names = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        names = names[: len(values)]
        if len(names) < len(values):
            names = [f"x{i}" for i in range(len(values))] if len(values) > 1 else ["x"]
    if input_names is not None:
        if len(input_names) != len(values):
            raise ValueError(
                f"exporters.onnx.export: there are {len(values)} inputs, but input_names has "
                f"{len(input_names)}"
            )
        return list(input_names), arrays, list(args) if as_keywords else None
    return names, arrays, list(args) if as_keywords else None


def _is_list(values):
    return isinstance(values, (tuple, list))


def _batch_size(arrays, pairs, axis):
    """Returns the size of the first batch; raises an error if the inputs have different sizes."""
    if len({x.shape[axis] for x in arrays}) > 1:
        shapes = ", ".join(str(x.shape) for x in arrays)
        raise ValueError(
            f"exporters.onnx.export: all inputs must have one size along batch_axis={axis}, but "
            f"are {shapes}; batch_axis=None fixes sizes"
        )
    return pairs[0][0].shape[axis]


@contextlib.contextmanager
def _new_states(model):
    """Context manager: stateful links start without state; on exit their states are restored."""
    links = model.links() if isinstance(model, Link) else ()
    kept = [(link, dict(vars(link))) for link in links if hasattr(link, "reset_state")]
    for link, _ in kept:
        link.reset_state()
    try:
        yield
    finally:
        for link, attributes in kept:
            vars(link).update(attributes)


def _call(model, tracer, names, arrays, keywords):
    inputs = [tracer.input(x) for x in arrays]
    with tracer.recording(), _new_states(model):
        result = model(**dict(zip(keywords, inputs))) if keywords else model(*inputs)
    return inputs, result


def _outputs(calls, output_names):
    """Returns the names of the outputs, and the pairs of outputs of the two calls."""
    results = [result for _, result in calls]
    first = results[0]
    if isinstance(first, Mapping):
        keys, lists = list(first), [list(result.values()) for result in results]
    elif _is_list(first):
        keys, lists = [f"output_{i}" for i in range(len(first))], results
    else:
        keys, lists = ["output"], [[result] for result in results]
    if not all(isinstance(y, Variable) for y in lists[0]):
        raise ValueError("exporters.onnx.export: the model must return Variables")
    if output_names is not None:
        if len(output_names) != len(keys):
            raise ValueError(
                f"exporters.onnx.export: there are {len(keys)} outputs, but output_names has "
                f"{len(output_names)}"
            )
        keys = list(output_names)
    return keys, list(zip(*lists))


def _parameter_names(model, taken):
    """Returns the names of the model's parameters by the addresses of their arrays."""
    found = {}
    for path, param in model.namedparams() if isinstance(model, Link) else ():
        if param.is_initialized and path[1:] not in taken:
            found.setdefault(address(param.array), path[1:])
    return found


def _model(onnx, graph, inputs, outputs, name):
    helper = onnx.helper
    needed = fused(graph, graph.needed([y.name for y in outputs]))
    used = {name for node in needed for name in node[1]}
    constants = {name: array for name, array in graph.constants.items() if name in used}
    nodes = []
    for operator, names, made, attributes, path in needed:
        label = f"{path.rstrip('/')}/{made[0]}"
        nodes.append(helper.make_node(operator, names, made, name=label, **attributes))
    tensors = [
        onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), key)
        for key, array in constants.items()
    ]
    described = [
        [
            helper.make_tensor_value_info(x.name, code_of(x.dtype), [*map(_shown, x.shape)])
            for x in values
        ]
        for values in (inputs, outputs)
    ]
    total = sum(array.nbytes for array in constants.values())
    if total > _MOST_BYTES:
        raise ValueError(
            f"exporters.onnx.export: the model has {total} bytes of constants, more than an ONNX "
            "file holds, 2 GB"
        )
    made = helper.make_model(
        helper.make_graph(nodes, name, *described, tensors),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="mpchain",
    )
    onnx.checker.check_model(made)
    return made


def _shown(size):
    if not isinstance(size, Dim):
        return size
    text = "batch" if size.factor == 1 else f"{size.factor}*batch"
    return f"{text}{size.offset:+d}" if size.offset else text


def _write(made, file):
    content = made.SerializeToString()
    if hasattr(file, "write"):
        file.write(content)
        return
    with open_atomic(os.fspath(file)) as opened:
        opened.write(content)
