"""Examples as a few large arrays instead of many small ones, to send them between processes."""

import numpy as np


class Columns:
    """Examples of one kind, column by column: all first elements, all second ones, ...

    Attributes:
        kind (type): tuple, dict, or None for examples that are their only element.
        keys (tuple): of the dicts.
        columns (list): for each element, an array of shape (n, ...) or a list of length n.

    Example:
        >>> Columns(tuple, None, [np.zeros((2, 3)), ["a", "b"]]).columns[1]
        ['a', 'b']
    """

    def __init__(self, kind: type | None, keys: tuple | None, columns: list):
        self.kind, self.keys, self.columns = kind, keys, columns


def to_columns(examples: list) -> Columns | list:
    """Returns the :class:`Columns` of a list of examples, or the list if their kinds differ.

    Example:
        >>> to_columns([(np.zeros(3), "a"), (np.ones(3), "b")]).columns[0].shape
        (2, 3)
    """
    first = examples[0]
    kind = type(first)
    if any(type(example) is not kind for example in examples):
        return examples
    if kind is tuple and first:
        if any(len(example) != len(first) for example in examples):
            return examples
        return Columns(tuple, None, [_column(column) for column in zip(*examples)])
    if kind is dict and first:
        if any(example.keys() != first.keys() for example in examples):
            return examples
        columns = [_column([example[key] for example in examples]) for key in first]
        return Columns(dict, tuple(first), columns)
    return Columns(None, None, [_column(examples)])


def from_columns(columns: Columns | list) -> list:
    """Returns the list of examples, the inverse of :func:`to_columns`.

    Example:
        >>> from_columns(to_columns([{"x": 1}, {"x": 2}]))
        [{'x': 1}, {'x': 2}]
    """
    if not isinstance(columns, Columns):
        return columns
    if columns.kind is tuple:
        return list(zip(*columns.columns))
    if columns.kind is dict:
        return [dict(zip(columns.keys, row)) for row in zip(*columns.columns)]
    return list(columns.columns[0])


def _column(values):
    """Returns values as one array if its elements are identical to them, else as a list."""
    first = values[0]
    kind = type(first)
    if kind is np.ndarray and first.ndim > 0 and not first.dtype.hasobject:
        shape, dtype = first.shape, first.dtype
        if all(type(x) is kind and x.shape == shape and x.dtype == dtype for x in values):
            return np.concatenate(values, dtype=dtype).reshape(len(values), *shape)
    elif issubclass(kind, (np.number, np.bool_)) and all(type(x) is kind for x in values):
        return np.array(values, first.dtype)
    return list(values)
