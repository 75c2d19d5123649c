"""Datasets with named columns, and views of them that read only the requested rows and columns."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.dataset.convert import concat_examples, is_array
from mpchain.dataset.dataset_mixin import DatasetMixin


class TabularDataset(DatasetMixin):
    """Base of datasets with named columns; a subclass defines ``__len__``, :attr:`keys`,
    :attr:`mode` and :meth:`get_examples`.

    Methods such as :meth:`join` and :attr:`slice` return views. A view reads no data before an
    example is requested, and then only the rows and columns that the example needs; but a slice of
    the result of :meth:`transform` may read the first example to find :attr:`mode`.

    Example:
        >>> from mpchain.dataset import tabular
        >>> dataset = tabular.from_data((("x", [0, 51, 102, 153]), ("t", ["a", "b", "c", "d"])))
        >>> train, test = dataset.slice[:3], dataset.slice[3:]
        >>> train.transform(("x", "t"), lambda x, t: (x / 255, t)).fetch()
        ([0.0, 0.2, 0.4], ['a', 'b', 'c'])
        >>> test[0], dataset.slice[[3, 0], "t"].fetch(), dataset.asdict()[1]
        ((153, 'd'), ['d', 'a'], {'x': 51, 't': 'b'})
    """

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns, a tuple of str."""
        raise NotImplementedError(f"{type(self).__name__} does not implement keys")

    @property
    def mode(self) -> type | None:
        """The type of an example: ``tuple``, ``dict``, or None for the value of the only column."""
        raise NotImplementedError(f"{type(self).__name__} does not implement mode")

    def get_examples(
        self, indices: list[int] | slice | None, key_indices: tuple[int, ...] | None
    ) -> tuple:
        """Reads rows of columns.

        Args:
            indices: the rows, as a list of integers or a slice; None means all rows.
            key_indices: the columns, as positions in :attr:`keys`; None means all columns.

        Returns:
            A tuple with a list or an array for each column.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement get_examples")

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) or np.ndim(index):
            rows = self.slice[index]
            columns = rows.get_examples(None, None)
            return [_in_mode(row, self.keys, self.mode) for row in _rows(columns, len(rows))]
        return super().__getitem__(index)

    def get_example(self, i: int) -> Any:
        columns = self.get_examples([i], None)
        return _in_mode([column[0] for column in columns], self.keys, self.mode)

    @property
    def slice(self) -> "_Slicer":
        """An object that returns views for ``dataset.slice[rows]`` or ``dataset.slice[rows,
        columns]``.

        Rows are a slice, or a list or array of integers or booleans. Columns are one name or
        position (examples of the view are then bare values), or a tuple or list of names and
        positions.
        """
        return _Slicer(self)

    def fetch(self) -> Any:
        """Reads all rows; returns a tuple or dict of columns, or the only column, depending on
        :attr:`mode`."""
        return _in_mode(self.get_examples(None, None), self.keys, self.mode)

    def convert(self, data: object) -> Any:
        """Converts the result of :meth:`fetch` to arrays, column by column.

        :meth:`with_converter` replaces this method; :meth:`concat` and :meth:`join` use the method
        of the first dataset.
        """
        if isinstance(data, tuple):
            return tuple(map(_as_array, data))
        if isinstance(data, dict):
            return {key: _as_array(column) for key, column in data.items()}
        return _as_array(data)

    def astuple(self) -> "TabularDataset":
        """Returns a view whose examples are tuples."""
        return _View(self, tuple)

    def asdict(self) -> "TabularDataset":
        """Returns a view whose examples are dicts."""
        return _View(self, dict)

    def concat(self, *datasets: "TabularDataset") -> "TabularDataset":
        """Returns a view with the rows of this dataset and of other datasets, one after another.

        Args:
            datasets: tabular datasets with the same keys.
        """
        return _Concat(self, *datasets)

    def join(self, *datasets: "TabularDataset") -> "TabularDataset":
        """Returns a view with the columns of this dataset and of other datasets, side by side.

        Args:
            datasets: tabular datasets of the same length with other keys.
        """
        return _Join(self, *datasets)

    def transform(self, keys: str | tuple[str, ...], transform: Callable) -> "TabularDataset":
        """Returns a view whose columns a function computes from each example.

        Args:
            keys: names of the new columns (tuple of str), or one name if the function returns the
                bare value of the only column.
            transform: function of the values of an example, passed as arguments (by name if
                :attr:`mode` is ``dict``). It returns a tuple or a dict of the new values.
        """
        return _Transform(self, keys, transform)

    def transform_batch(
        self, keys: str | tuple[str, ...], transform_batch: Callable
    ) -> "TabularDataset":
        """Returns a view whose columns a function computes from whole columns.

        Args:
            keys: see :meth:`transform`.
            transform_batch: a function like ``transform`` of :meth:`transform`, but of the columns
                of several examples; the new columns must have the length of these columns.
        """
        return _TransformBatch(self, keys, transform_batch)

    def with_converter(self, converter: Callable) -> "TabularDataset":
        """Returns a view whose :meth:`convert` calls another function.

        Args:
            converter: function of the columns, passed as arguments (by name if :attr:`mode` is
                ``dict``).
        """
        return _WithConverter(self, converter)


def _in_mode(columns, keys, mode):
    if mode is dict:
        return dict(zip(keys, columns))
    return tuple(columns) if mode is tuple else columns[0]


def _apply(function, data):
    """Calls a function with data of any mode: a dict by name, a tuple by position, or one value."""
    if isinstance(data, tuple):
        return function(*data)
    return function(**data) if isinstance(data, dict) else function(data)


def _rows(columns, n):
    return zip(*columns) if columns else [()] * n


def _as_array(column):
    if is_array(column):
        return column
    return concat_examples(column) if len(column) else np.empty(0)


class _View(TabularDataset):
    """A view of a whole dataset, perhaps in another mode; the base class of the other views."""

    def __init__(self, dataset, mode):
        self.dataset = dataset
        self._mode = mode

    def __len__(self):
        return len(self.dataset)

    @property
    def keys(self):
        return self.dataset.keys

    @property
    def mode(self):
        return self._mode

    def get_examples(self, indices, key_indices):
        return self.dataset.get_examples(indices, key_indices)

    def convert(self, data):
        return self.dataset.convert(data)


class DelegateDataset(_View):
    """Base of a user's tabular dataset that is made from another tabular dataset.

    Args:
        dataset: the dataset, to which all calls are delegated.

    Example:
        >>> from mpchain.dataset import tabular
        >>> class Squares(tabular.DelegateDataset):
        ...     def __init__(self):
        ...         columns = ("x", list(range(10))), ("y", lambda i: i * i)
        ...         super().__init__(tabular.from_data(columns))
        >>> Squares()[3]
        (3, 9)
    """

    def __init__(self, dataset: TabularDataset):
        super().__init__(dataset, None)

    @property
    def mode(self) -> type | None:
        return self.dataset.mode


class _WithConverter(DelegateDataset):
    def __init__(self, dataset, converter):
        super().__init__(dataset)
        self._converter = converter

    def convert(self, data):
        return _apply(self._converter, data)


class _Slicer:
    def __init__(self, dataset):
        self._dataset = dataset

    def __getitem__(self, index):
        rows, keys = index if isinstance(index, tuple) else (index, None)
        return _Slice(self._dataset, rows, keys)


class _Slice(_View):
    def __init__(self, dataset, rows, keys):
        super().__init__(dataset, dataset.mode if keys is None else None)
        self._rows = _as_rows(rows, len(dataset))
        self._key_indices = None
        if isinstance(keys, (tuple, list)):
            self._mode = dataset.mode or tuple
            self._key_indices = tuple([_key_index(key, dataset.keys) for key in keys])
        elif keys is not None:
            self._key_indices = (_key_index(keys, dataset.keys),)

    def __len__(self):
        return len(self._rows)

    @property
    def keys(self):
        keys = self.dataset.keys
        return keys if self._key_indices is None else tuple([keys[i] for i in self._key_indices])

    def get_examples(self, indices, key_indices):
        rows = self._rows
        if isinstance(indices, slice):
            rows = rows[indices]
        elif indices is not None:
            rows = [rows[i] for i in indices]
        if self._key_indices is not None:
            if key_indices is None:
                key_indices = self._key_indices
            else:
                key_indices = tuple([self._key_indices[i] for i in key_indices])
        return self.dataset.get_examples(_as_indices(rows), key_indices)


def _as_rows(rows, n):
    """Returns a range, or a list of integers from 0 to n - 1."""
    if isinstance(rows, slice):
        return range(n)[rows]
    if np.ndim(rows) != 1:
        raise TypeError(
            "TabularDataset.slice: rows must be a slice or a list of integers or booleans, "
            f"not {rows!r}"
        )
    rows = np.asarray(rows)
    if rows.dtype == bool:
        if len(rows) != n:
            raise ValueError(
                f"TabularDataset.slice: {len(rows)} booleans cannot choose among {n} rows"
            )
        return np.flatnonzero(rows).tolist()
    rows = [operator.index(row) for row in rows]
    for row in rows:
        if not -n <= row < n:
            raise IndexError(f"TabularDataset.slice: row {row} is out of range for {n} rows")
    return [row % n for row in rows]


def _as_indices(rows):
    """Returns indices for :meth:`TabularDataset.get_examples`: a range becomes a slice."""
    if not isinstance(rows, range):
        return rows
    if not rows:
        return slice(0, 0)
    stop = None if rows.stop < 0 else rows.stop  # a negative stop of a slice counts from the end
    return slice(rows.start, stop, rows.step)


def _key_index(key, keys):
    if isinstance(key, str):
        if key not in keys:
            raise KeyError(f"TabularDataset.slice: no column {key!r}; the columns are {keys}")
        return keys.index(key)
    if isinstance(key, (bool, np.bool_)) or not hasattr(key, "__index__"):
        raise TypeError(f"TabularDataset.slice: a column must be a name or a position, not {key!r}")
    index = operator.index(key)
    if not -len(keys) <= index < len(keys):
        raise IndexError(f"TabularDataset.slice: column {index} is out of range for {keys}")
    return index % len(keys)


class _Concat(DelegateDataset):
    def __init__(self, *datasets):
        super().__init__(datasets[0])
        self._datasets = datasets
        for dataset in datasets:
            if dataset.keys != self.keys:
                raise ValueError(
                    "TabularDataset.concat: datasets must have the same keys, "
                    f"but these have {self.keys} and {dataset.keys}"
                )

    def __len__(self):
        return sum(map(len, self._datasets))

    def get_examples(self, indices, key_indices):
        if indices is None:
            parts = [dataset.get_examples(None, key_indices) for dataset in self._datasets]
            return tuple([[x for part in column for x in part] for column in zip(*parts)])
        if isinstance(indices, slice):
            indices = range(len(self))[indices]
        indices = np.asarray(indices, int)
        n_columns = len(self.keys if key_indices is None else key_indices)
        columns = tuple([[None] * len(indices) for _ in range(n_columns)])
        start = 0
        for dataset in self._datasets:
            (places,) = np.nonzero((start <= indices) & (indices < start + len(dataset)))
            if len(places):
                rows = (indices[places] - start).tolist()
                for column, values in zip(columns, dataset.get_examples(rows, key_indices)):
                    for place, value in zip(places.tolist(), values):
                        column[place] = value
            start += len(dataset)
        return columns


class _Join(DelegateDataset):
    keys: tuple[str, ...] = ()

    def __init__(self, *datasets):
        super().__init__(datasets[0])
        self._datasets = datasets
        lengths = [len(dataset) for dataset in datasets]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"TabularDataset.join: datasets must have one length, but these have {lengths}"
            )
        self.keys = tuple([key for dataset in datasets for key in dataset.keys])
        repeated = sorted({key for key in self.keys if self.keys.count(key) > 1})
        if repeated:
            raise ValueError(
                f"TabularDataset.join: keys must be unique, but {repeated} occur more than once"
            )

    @property
    def mode(self):
        modes = [dataset.mode for dataset in self._datasets]
        return next((mode for mode in modes if mode is not None), tuple)

    def get_examples(self, indices, key_indices):
        wanted = range(len(self.keys)) if key_indices is None else key_indices
        found, start = {}, 0
        for dataset in self._datasets:
            end = start + len(dataset.keys)
            mine = tuple(dict.fromkeys(i - start for i in wanted if start <= i < end))
            if mine:
                every = mine == tuple(range(len(dataset.keys)))
                columns = dataset.get_examples(indices, None if every else mine)
                found.update(zip([i + start for i in mine], columns))
            start = end
        return tuple([found[i] for i in wanted])


class _Transform(_View):
    method = "transform"
    keys: tuple[str, ...] = ()

    def __init__(self, dataset, keys, transform):
        super().__init__(dataset, None)
        self._is_bare = isinstance(keys, str)
        self.keys = (keys,) if self._is_bare else tuple(keys)
        self._transform = transform

    @functools.cached_property
    def mode(self):
        if self._is_bare:
            return None
        kind = type(self._first_result()) if len(self) else tuple
        return kind if kind in (tuple, dict) else None

    def _first_result(self):
        return _apply(self._transform, self.dataset.get_example(0))

    def get_examples(self, indices, key_indices):
        columns = self.dataset.get_examples(indices, None)
        wanted = range(len(self.keys)) if key_indices is None else key_indices
        rows = []
        for row in zip(*columns):
            data = _in_mode(row, self.dataset.keys, self.dataset.mode)
            rows.append(self._values(_apply(self._transform, data)))
        return tuple([[row[i] for row in rows] for i in wanted])

    def _values(self, result):
        """Returns the new values or columns, by position, from the result of the function."""
        if self._is_bare:
            return (result,)
        if isinstance(result, dict) and result.keys() == set(self.keys):
            return [result[key] for key in self.keys]
        values = result if isinstance(result, tuple) else (result,)
        if isinstance(result, dict) or len(values) != len(self.keys):
            what = f"keys {tuple(result)}" if isinstance(result, dict) else f"{len(values)} values"
            raise ValueError(
                f"TabularDataset.{self.method}: the function must return values for the keys "
                f"{self.keys}, but it returned {what}"
            )
        return values


class _TransformBatch(_Transform):
    method = "transform_batch"

    def _first_result(self):
        return self._result([0])

    def _result(self, indices):
        columns = self.dataset.get_examples(indices, None)
        return _apply(self._transform, _in_mode(columns, self.dataset.keys, self.dataset.mode))

    def get_examples(self, indices, key_indices):
        columns = self._values(self._result(indices))
        return tuple(columns if key_indices is None else [columns[i] for i in key_indices])
