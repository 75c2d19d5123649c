"""Tabular datasets from lists, arrays and functions."""

import itertools

from mpchain.dataset.convert import is_array
from mpchain.dataset.tabular_dataset import DelegateDataset as DelegateDataset
from mpchain.dataset.tabular_dataset import TabularDataset

_numbers = itertools.count()


def from_data(data: object, *, size: int | None = None) -> TabularDataset:
    """Makes a :class:`mpchain.dataset.TabularDataset` from lists, arrays and functions.

    Args:
        data: one column, a tuple of columns, or a dict of columns. A column is a list or array,
            which gets a unique name; a pair of a name and a list, array or function of the row
            number; or a pair of a tuple of names and a function that returns a tuple or dict of
            values. In a dict the keys are the names, or tuples of names.
        size: number of rows; required if all columns are functions.

    Returns:
        A dataset whose mode is ``tuple`` for a tuple, ``dict`` for a dict, and None for one column;
        for one function with several names, it is the type of the function's result.

    Raises:
        ValueError: there are no columns, a column has another form, lengths differ, a function has
            no name, or the size is unknown.

    Example:
        >>> dataset = from_data({"x": np.eye(3), "name": lambda i: f"image {i}"})
        >>> dataset.slice[:2, "name"].fetch()
        ['image 0', 'image 1']
    """
    if isinstance(data, dict):
        return _join(list(data.items()), size).asdict()
    if isinstance(data, tuple) and not _is_named(data):
        return _join([_as_named(column) for column in data], size).astuple()
    return _join([_as_named(data)], size)


def _is_named(column):
    """Returns whether ``column`` is a pair of names and values, and not two columns."""
    if not isinstance(column, tuple) or len(column) != 2:
        return False
    names = column[0]
    if isinstance(names, tuple):
        return callable(column[1]) and all(isinstance(name, str) for name in names)
    return isinstance(names, str)


def _as_named(column):
    if _is_named(column):
        return column
    if callable(column):
        raise ValueError("from_data: a function needs a key, as in ('name', function)")
    if isinstance(column, (str, tuple, dict)) or not hasattr(column, "__len__"):
        raise ValueError(
            "from_data: a column must be a list, an array, or a pair of key and list, array or "
            f"function, not {column!r}"
        )
    return f"_{next(_numbers)}", column


def _join(columns, size):
    if not columns:
        raise ValueError("from_data: data must have at least one column")
    for names, values in columns:
        if isinstance(values, str):
            raise ValueError(f"from_data: column {names!r} is the string {values!r}, not a list")
    lengths = {len(values) for _, values in columns if not callable(values)}
    if size is not None:
        lengths.add(size)
    if not lengths:
        raise ValueError("from_data: size must be passed if all columns are functions")
    if len(lengths) > 1:
        raise ValueError(
            f"from_data: columns must have one length, but the lengths are {sorted(lengths)}"
        )
    (size,) = lengths
    datasets = []
    for names, values in columns:
        if callable(values):
            datasets.append(_Column("index", range(size)).transform(names, values))
        elif isinstance(names, str):
            datasets.append(_Column(names, values))
        else:
            raise ValueError(f"from_data: the values for several keys {names} must be a function")
    return datasets[0].join(*datasets[1:]) if len(datasets) > 1 else datasets[0]


class _Column(TabularDataset):
    """A dataset with one column, which is a list or array."""

    keys: tuple[str, ...] = ()
    mode: type | None = None

    def __init__(self, key, values):
        self.keys, self._values = (key,), values

    def __len__(self):
        return len(self._values)

    def get_examples(self, indices, key_indices):
        values = self._values
        if indices is not None:
            if isinstance(indices, list) and not is_array(values):
                values = [values[i] for i in indices]
            else:
                values = values[indices]
        return (values,) * (1 if key_indices is None else len(key_indices))
