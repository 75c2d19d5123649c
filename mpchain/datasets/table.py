"""Datasets from tables: CSV files, or columns in memory."""

import csv
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpchain import configuration
from mpchain.dataset import DatasetMixin
from mpchain.typing import DTypeLike

NUMBER, CATEGORY = "number", "category"


class TableDataset(DatasetMixin):
    """The rows of a table: numbers and categories as one array of features, and a target.

    An example is a pair ``(x, t)``. ``x`` is an array of shape (features,) for the input columns: a
    column of numbers becomes one feature; a column of categories becomes one feature for each
    category, 1 for the category of the row and 0 for the others. ``t`` is an array of shape (1,) if
    the target is a number, or the number of its category, an int32 array of shape (), if it is a
    category. Without a target, an example is ``x``.

    Without ``types``, a column is a column of numbers if all its values, except missing ones, are
    finite numbers; otherwise it is a column of categories, which are sorted. Pass :attr:`types` of
    the training data for other files, so that their features are the same.

    Args:
        table: path of a CSV file, whose first line has the names of the columns; or a mapping of
            names to columns, such as a ``pandas.DataFrame``.
        target: name of the column to predict; None means no target.
        inputs: names of the input columns; None means all columns except the target.
        types: dict from name to the type of a column: ``"number"``, ``"category"``, or a list of
            the categories.
        missing: the number that replaces a missing number (an empty text, None or NaN); None
            refuses missing numbers.
        dtype: the dtype of the features and of a target of numbers; None means ``config.dtype``.
        encoding: the encoding of the file.
        options: arguments of :func:`csv.reader`, such as ``delimiter=";"``.

    Attributes:
        x: array of the features of all rows, of shape (rows, features).
        t: array of the targets of all rows, of shape (rows, 1) or (rows,); None without a target.
        features: name of each feature, such as ``"age"`` and ``"color=red"``.
        types: dict from each used column to its type: ``"number"``, or the list of its categories.

    Raises:
        ValueError: a column is missing, rows or columns have different lengths, or a value does not
            have the type of its column.

    Example:
        >>> columns = {"age": [3, 5], "color": ["red", "blue"], "kind": ["a", "b"]}
        >>> table = mpchain.datasets.TableDataset(columns, target="kind")
        >>> table.features, table.types["kind"]
        (['age', 'color=blue', 'color=red'], ['a', 'b'])
        >>> x, t = table[0]
        >>> x, int(t)
        (array([3., 0., 1.], dtype=float32), 0)
    """

    def __init__(
        self,
        table: str | os.PathLike[str] | Mapping[str, Sequence[Any]],
        target: str | None = None,
        inputs: Sequence[str] | None = None,
        *,
        types: Mapping[str, str | Sequence[str]] | None = None,
        missing: float | None = None,
        dtype: DTypeLike | None = None,
        encoding: str = "utf-8",
        **options: Any,
    ):
        is_file = isinstance(table, (str, os.PathLike))
        self._name = f"TableDataset: {os.fspath(table)}" if is_file else "TableDataset"
        columns = self._read(table, encoding, options) if is_file else table
        if inputs is None:
            inputs = [name for name in columns if name != target]
        names = [*inputs, *([] if target is None else [target])]
        if absent := [name for name in [*names, *(types or {})] if name not in columns]:
            known = ", ".join(map(str, columns))
            raise ValueError(f"{self._name}: there is no column {absent[0]!r}; known: {known}")
        self._missing = missing
        self._dtype = configuration.get_dtype(dtype)
        self.types, found = {}, {}
        for name in names:
            wanted = (types or {}).get(name)
            self.types[name], found[name] = self._convert(name, columns[name], wanted)
        lengths = {name: len(column) for name, column in found.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"{self._name}: columns must have one length, but have {lengths}")
        blocks = [self._one_hot(found[name], self.types[name]) for name in inputs]
        n = next(iter(lengths.values()))
        self.x = np.concatenate([np.empty((n, 0), self._dtype), *blocks], axis=1)
        self.features = [each for name in inputs for each in self._features(name)]
        self.t = None if target is None else found[target]
        if self.t is not None and self.types[target] == NUMBER:
            self.t = self.t[:, None]

    def __len__(self) -> int:
        return len(self.x)

    def get_example(self, i: int) -> Any:
        return self.x[i] if self.t is None else (self.x[i], self.t[i, ...])

    def _read(self, path, encoding, options):
        with open(path, encoding=encoding, newline="") as file:
            reader = csv.reader(file, **options)
            names = next(reader, [])
            if not names or len(set(names)) < len(names):
                raise ValueError(
                    f"{self._name}: the first line must name the columns, each differently, "
                    f"not {names}"
                )
            rows = []
            for row in reader:
                if row and len(row) != len(names):
                    raise ValueError(
                        f"{self._name}: line {reader.line_num} must have {len(names)} values, "
                        f"one for each column, not {len(row)}"
                    )
                rows += [row] if row else []
        return dict(zip(names, zip(*rows) if rows else [()] * len(names)))

    def _convert(self, name, column, wanted):
        """Returns the type of a column, and an array of its numbers or of the numbers of its
        categories."""
        texts = ["" if _is_missing(value) else str(value) for value in column]
        if wanted is None:
            is_number = any(texts) and all(not text or _is_number(text) for text in texts)
            wanted = NUMBER if is_number else CATEGORY
        if isinstance(wanted, str) and wanted not in (NUMBER, CATEGORY):
            raise ValueError(
                f"{self._name}: the type of {name!r} must be 'number', 'category' or a list of "
                f"categories, not {wanted!r}"
            )
        if isinstance(wanted, str) and wanted == NUMBER:
            return NUMBER, self._numbers(name, texts)
        known = sorted(set(texts)) if isinstance(wanted, str) else list(map(str, wanted))
        numbers = {category: i for i, category in enumerate(known)}
        for row, text in enumerate(texts):
            if text not in numbers:
                raise ValueError(
                    f"{self._name}: row {row} of {name!r} must be one of {known}, not {text!r}"
                )
        return known, np.array([numbers[text] for text in texts], np.int32)

    def _numbers(self, name, texts):
        for row, text in enumerate(texts):
            if not text and self._missing is None:
                raise ValueError(
                    f"{self._name}: row {row} of {name!r} has no value; pass missing=... to fill it"
                )
            if text and not _is_number(text):
                raise ValueError(
                    f"{self._name}: row {row} of {name!r} must be a number, not {text!r}"
                )
        return np.array([float(text) if text else self._missing for text in texts], self._dtype)

    def _one_hot(self, column, kind):
        if kind == NUMBER:
            return column[:, None]
        return (column[:, None] == np.arange(len(kind))).astype(self._dtype)

    def _features(self, name):
        kind = self.types[name]
        return [name] if kind == NUMBER else [f"{name}={category}" for category in kind]


def _is_missing(value):
    return value is None or (isinstance(value, (float, np.floating)) and math.isnan(value))


def _is_number(text):
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
