"""Loads PyTorch's state dicts and their files into models, and makes state dicts from models."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mpchain.backend import get_device_from_array
from mpchain.backends.cuda import to_cpu
from mpchain.backends.dtypes import is_floating
from mpchain.interop.rules import tensors_of
from mpchain.link import Link
from mpchain.serializer import SerializationError
from mpchain.serializers.safetensors import read_safetensors
from mpchain.typing import Array

Names = Mapping[str, str] | Callable[[str], str] | None
Source = str | os.PathLike[str] | Mapping[str, Any]


def state_dict(model: Link, *, names: Names = None, prefix: str = "") -> dict[str, Array]:
    """Returns a model's parameters and averages under the names of PyTorch's equivalent module.

    ``module.load_state_dict({k: torch.from_numpy(v) for k, v in state_dict(model).items()})`` loads
    them; ``mpchain.serializers.safetensors.write_safetensors`` writes them to a file.

        >>> {name: a.shape for name, a in mpchain.interop.state_dict(L.Linear(3, 2)).items()}
        {'weight': (2, 3), 'bias': (2,)}

    Args:
        model: the model, with all parameters initialized.
        names: see :func:`load_state_dict`.
        prefix: the beginning of all names.

    Returns:
        dict: maps each name to a new NumPy array.

    Raises:
        NotImplementedError: a link has no counterpart in PyTorch.
        ValueError: a parameter is not initialized, or two tensors have the same name.
    """
    found = {}
    for name, tensor, _ in _named_tensors("state_dict", model, names, prefix):
        if tensor.value is not None:
            found[name] = tensor.value.copy()
        elif not tensor.is_initialized:
            raise ValueError(f"state_dict: the parameter of {name} is not initialized")
        elif tensor.parts:
            arrays = [to_cpu(array) for array in tensor.arrays]
            array = np.concatenate(arrays) if len(arrays) > 1 else arrays[0].copy()
            found[name] = np.ascontiguousarray(array.T) if tensor.is_transposed else array
            if tensor.is_added:
                found[name][...] = 0
    return found


def load_state_dict(
    model: Link,
    source: Source,
    *,
    names: Names = None,
    prefix: str = "",
    ignore: Callable[[str], bool] | None = None,
) -> None:
    """Loads the weights of PyTorch's equivalent module.

    Nothing is loaded unless all names and shapes match. Values are cast to the model's dtypes.

        >>> linear = L.Linear(None, 2)
        >>> weights = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
        >>> mpchain.interop.load_state_dict(linear, weights)
        >>> linear.W.shape
        (2, 3)

    Args:
        model: the model.
        source: the result of a module's ``state_dict()``, a dict of arrays, or the path of a
            ``.safetensors`` file or of a file of ``torch.save``, which needs PyTorch and may
            hold only tensors.
        names: for a model whose links are not named like PyTorch's modules: a dict from the first
            parts of mpchain's names to PyTorch's, such as ``{"encoder.l1": "net.0"}``, or a
            function of a whole name. mpchain's name is the link's path, with dots, followed by
            PyTorch's name of the tensor.
        prefix: the beginning of all names in the source, such as ``"module."``; tensors with other
            names are ignored.
        ignore: a function that takes a name in the source and returns whether to ignore the tensor.

    Raises:
        ImportError: the file needs PyTorch, which is not installed.
        SerializationError: tensors are missing or unexpected, or differ in shape or kind; the
            message lists all of them.
        NotImplementedError: a link has no counterpart in PyTorch.
        ValueError: two tensors have the same name, or a link whose tensors are made from its arrays
            has none yet.
    """
    given = {
        name: value
        for name, value in _read(source).items()
        if name.startswith(prefix) and not (ignore and ignore(name))
    }
    wanted = [*_named_tensors("load_state_dict", model, names, prefix)]
    faults = _faults(wanted, given)
    if faults:
        kind = type(model).__name__
        raise SerializationError(
            f"load_state_dict: the tensors do not fit {kind}: " + "; ".join(faults)
        )
    for name, tensor, _ in wanted:
        if tensor.parts:
            _assign(tensor, _as_array(given[name]))


def _named_tensors(caller, model, names, prefix):
    """Yields the tensors of :func:`tensors_of`, under the names of the source."""
    seen = set()
    for name, tensor, link in tensors_of(model):
        name = prefix + _renamed(name, names)
        if name in seen:
            raise ValueError(f"{caller}: two tensors have the name {name!r}")
        seen.add(name)
        yield name, tensor, link


def _renamed(name, names):
    if names is None or callable(names):
        return names(name) if names else name
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        new = names.get(".".join(parts[:n]))
        if new is not None:
            return ".".join([new, *parts[n:]])
    return name


def _read(source):
    if isinstance(source, Mapping):
        return source
    if os.fspath(source).endswith(".safetensors"):
        return read_safetensors(source)
    try:
        import torch
    except ImportError:
        raise ImportError(
            f"load_state_dict: reading {source} needs PyTorch, which is not installed: pip install "
            "torch, or save the tensors as .safetensors"
        ) from None
    content = torch.load(source, map_location="cpu", weights_only=True)
    if not isinstance(content, Mapping):
        raise SerializationError(
            f"load_state_dict: {source} must hold a dict of tensors, not {type(content).__name__}"
        )
    return content


def _as_array(value):
    """Returns a tensor of PyTorch as a NumPy array."""
    if not hasattr(value, "detach"):
        return to_cpu(value)
    value = value.detach().cpu()
    # NumPy has no bfloat16, so short floats are converted to float32.
    is_short = value.dtype.is_floating_point and value.itemsize < 4
    return (value.float() if is_short else value).numpy()


def _faults(wanted, given):
    """Returns descriptions of the mismatches between the model's tensors and the source's."""
    names = {name: tensor for name, tensor, _ in wanted}
    missing = [name for name, t in names.items() if t.parts and name not in given]
    faults = [f"missing: {', '.join(missing)}"] if missing else []
    unexpected = sorted(given.keys() - names.keys())
    faults += [f"unexpected: {', '.join(unexpected)}"] if unexpected else []
    for name, tensor, link in wanted:
        if tensor.parts and name in given:
            faults += _misfits(name, tensor, link, given[name])
    return faults


def _misfits(name, tensor, link, value):
    if not hasattr(value, "shape"):
        return [f"{name} must be a tensor, not {type(value).__name__}"]
    shape = tuple(value.shape)
    if not tensor.is_initialized:
        if len(tensor.parts) > 1:
            return [f"{name} belongs to parameters without arrays: call the model once"]
        param = tensor.parts[0]
        if not link._shape_fits(param.name, shape):
            return [f"{name} has shape {shape}, which {type(link).__name__} cannot have"]
    elif shape != tensor.shape:
        return [f"{name} has shape {shape}, not {tensor.shape}"]
    own, given = tensor.parts[0].dtype, _as_array(value).dtype
    fits = own.kind == given.kind or is_floating(own, given)
    return [] if fits else [f"{name} has the wrong dtype, {value.dtype}"]


def _assign(tensor, values):
    values = values.T if tensor.is_transposed else values
    if not tensor.is_initialized:
        tensor.parts[0].initialize(values.shape)
    at = 0
    for array in tensor.arrays:
        piece = values if len(tensor.parts) == 1 else values[at : at + len(array)]
        at += len(piece) if piece.ndim else 0
        piece = get_device_from_array(array).send(piece)
        array[...] = array + piece if tensor.is_added else piece
