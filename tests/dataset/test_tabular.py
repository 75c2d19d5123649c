"""Tests TabularDataset, its views, DelegateDataset and from_data."""

import pickle

import numpy as np
import pytest

from mpchain import iterators
from mpchain.dataset import TabularDataset, concat_examples, tabular


class Table(TabularDataset):
    """A dataset of ten rows and three columns, which records the requests for its data."""

    def __init__(self, keys=("a", "b", "c"), mode=tuple):
        self._keys, self._mode = keys, mode
        self.columns = np.arange(30).reshape(3, 10)
        self.asked = []

    def __len__(self):
        return 10

    @property
    def keys(self):
        return self._keys

    @property
    def mode(self):
        return self._mode

    def get_examples(self, indices, key_indices):
        self.asked.append((indices, key_indices))
        columns = self.columns if key_indices is None else self.columns[list(key_indices)]
        return tuple(columns if indices is None else columns[:, indices])


def lists(data):
    """Returns the data with lists instead of arrays."""
    if isinstance(data, tuple):
        return tuple(map(lists, data))
    if isinstance(data, dict):
        return {key: lists(value) for key, value in data.items()}
    return np.asarray(data).tolist()


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def other():
    return Table(("x", "y", "z"))


def test_examples(table):
    assert table[1] == (1, 11, 21)
    assert table[-1] == (9, 19, 29)
    assert table[2:4] == [(2, 12, 22), (3, 13, 23)]
    assert table[[3, 1]] == table[np.array([3, 1])] == [(3, 13, 23), (1, 11, 21)]
    assert table[np.arange(10) > 8] == [(9, 19, 29)]
    assert list(table)[9] == (9, 19, 29)
    with pytest.raises(IndexError, match="Table: index 10 is out of range for 10 examples"):
        table[10]


def test_several_examples_are_read_at_once(table):
    table[2:5]
    assert table.asked == [(slice(2, 5, 1), None)]


@pytest.mark.parametrize(
    ("mode", "example", "data"),
    [
        (tuple, (1,), ([0, 1],)),
        (dict, {"a": 1}, {"a": [0, 1]}),
        (None, 1, [0, 1]),
    ],
)
def test_modes(mode, example, data):
    table = Table(mode=tuple).slice[:2, ("a",)]
    view = {tuple: table.astuple(), dict: table.asdict(), None: table.slice[:, "a"]}[mode]
    assert view.mode is mode
    assert view[1] == example
    assert view[:] == [view[0], view[1]]
    assert lists(view.fetch()) == data
    assert view.astuple()[1] == (1,)
    assert view.asdict()[1] == {"a": 1}


ROWS = [
    (slice(None), list(range(10))),
    (slice(2, 5), [2, 3, 4]),
    (slice(None, None, -1), list(range(10))[::-1]),
    (slice(8, 2, -3), [8, 5]),
    (slice(8, 100), [8, 9]),
    (slice(5, 5), []),
    (slice(-2, None), [8, 9]),
    ([3, 1, 3, -1], [3, 1, 3, 9]),
    (np.array([0, 4]), [0, 4]),
    (np.arange(10) % 4 == 0, [0, 4, 8]),
    ([True] * 3 + [False] * 7, [0, 1, 2]),
    ([], []),
]


@pytest.mark.parametrize(("rows", "expected"), ROWS, ids=str)
@pytest.mark.parametrize("inner", [slice(None), slice(None, None, 2), slice(None, None, -1), [0]])
def test_rows_of_rows(table, rows, expected, inner):
    view = table.slice[rows]
    assert len(view) == len(expected)
    assert lists(view.fetch()[0]) == expected
    assert [example[0] for example in view] == expected
    if expected or isinstance(inner, slice):
        expected = expected[inner] if isinstance(inner, slice) else [expected[0]]
        assert lists(view.slice[inner].fetch()[0]) == expected
        assert lists(view.get_examples(inner, (0,))[0]) == expected


@pytest.mark.parametrize(
    ("columns", "keys", "mode"),
    [
        ("b", ("b",), None),
        (1, ("b",), None),
        (-1, ("c",), None),
        (("b",), ("b",), tuple),
        (("c", "a"), ("c", "a"), tuple),
        (["c", 0], ("c", "a"), tuple),
        ((2, -2), ("c", "b"), tuple),
        ((), (), tuple),
    ],
)
def test_columns(table, columns, keys, mode):
    view = table.slice[2:, columns]
    assert (view.keys, view.mode) == (keys, mode)
    values = {"a": 3, "b": 13, "c": 23}
    expected = tuple(values[key] for key in keys)
    assert view[1] == (expected if mode else expected[0])
    assert view[1:2] == [view[1]]
    assert table.asdict().slice[2:, list(keys)][1] == dict(zip(keys, expected))
    assert len(view) == 8


def test_columns_of_columns(table):
    view = table.slice[[0, 2, 4]].slice[:, ("c", "b")].slice[1:, 1]
    assert lists(view.fetch()) == [12, 14]
    assert view.slice[:, ("b",)].mode is tuple


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (3, TypeError, "rows must be a slice or a list of integers or booleans, not 3"),
        ([10], IndexError, "row 10 is out of range for 10 rows"),
        ([-11], IndexError, "row -11 is out of range for 10 rows"),
        ([True], ValueError, "1 booleans cannot choose among 10 rows"),
        ([0.5], TypeError, "float"),
        ((slice(None), "d"), KeyError, r"no column 'd'; the columns are \('a', 'b', 'c'\)"),
        ((slice(None), 3), IndexError, r"column 3 is out of range for \('a', 'b', 'c'\)"),
        ((slice(None), [True]), TypeError, "a column must be a name or a position, not True"),
        ((slice(None), slice(1)), TypeError, "a column must be a name or a position, not slice"),
    ],
)
def test_wrong_slices(table, index, error, message):
    with pytest.raises(error, match=message):
        table.slice[index]


def test_only_what_is_needed_is_read(table, other):
    table.slice[::2].slice[1:, "b"].fetch()
    table.slice[:, "a"][1]
    table.slice[[3, 1], ("c",)].fetch()
    assert table.asked == [(slice(2, 10, 2), (1,)), ([1], (0,)), ([3, 1], (2,))]
    table.asked.clear()
    table.join(other).slice[1:, ("y",)].fetch()
    assert (table.asked, other.asked) == ([], [(slice(1, 10, 1), (1,))])
    other.asked.clear()
    view = other.concat(other).slice[[12, 1, 11]]
    assert lists(view.fetch()) == ([2, 1, 1], [12, 11, 11], [22, 21, 21])
    assert other.asked == [([1], None), ([2, 1], None)]


def test_concat(table):
    view = table.slice[:2].concat(table.slice[5:6], table.asdict().slice[8:])
    assert (len(view), view.keys, view.mode) == (5, ("a", "b", "c"), tuple)
    assert [example[0] for example in view] == [0, 1, 5, 8, 9]
    assert lists(view.fetch()[2]) == [20, 21, 25, 28, 29]
    assert lists(view.slice[::-2, ("b", "a")].fetch()) == ([19, 15, 10], [9, 5, 0])
    assert lists(view.slice[:0].fetch()) == ([], [], [])
    assert len(table.concat()) == 10
    with pytest.raises(ValueError, match=r"concat: .* same keys, but these have \('a', .* 'z'\)"):
        table.concat(Table(("x", "y", "z")))


def test_join(table, other):
    view = table.join(other.slice[:, ("x", "z")])
    assert (len(view), view.keys, view.mode) == (10, ("a", "b", "c", "x", "z"), tuple)
    assert view[1] == (1, 11, 21, 1, 21)
    assert lists(view.slice[:2, ("z", "a", "z")].fetch()) == ([20, 21], [0, 1], [20, 21])
    assert table.slice[:, "a"].join(other.asdict()).mode is dict
    assert table.asdict().join(other).mode is dict
    assert table.slice[:, "a"].join(other.slice[:, "x"]).mode is tuple
    with pytest.raises(ValueError, match=r"one length, but these have \[10, 5\]"):
        table.join(other.slice[:5])
    with pytest.raises(ValueError, match=r"keys must be unique, but \['a', 'c'\] occur"):
        table.join(table.slice[:, ("a", "c")])


FUNCTIONS = {
    tuple: lambda a, b, c: (a + b, c),
    dict: lambda a, b, c: {"q": c, "p": a + b},
}


@pytest.mark.parametrize("mode", [tuple, dict])
@pytest.mark.parametrize("method", ["transform", "transform_batch"])
@pytest.mark.parametrize("is_dict", [False, True])
def test_transform(table, mode, method, is_dict):
    source = table.asdict() if is_dict else table
    view = getattr(source, method)(("p", "q"), FUNCTIONS[mode])
    assert (len(view), view.keys, view.mode) == (10, ("p", "q"), mode)
    assert view[1] == ((12, 21) if mode is tuple else {"p": 12, "q": 21})
    assert view[1:2] == [view[1]]
    expected = ([10, 12, 14], [20, 21, 22])
    assert lists(view.slice[:3].astuple().fetch()) == expected
    assert lists(view.slice[:3, "q"].fetch()) == expected[1]
    assert view.slice[:, "p"][2] == 14


@pytest.mark.parametrize("method", ["transform", "transform_batch"])
def test_transform_to_one_bare_value(table, method):
    view = getattr(table, method)("p", lambda a, b, c: a + b)
    assert (view.keys, view.mode) == (("p",), None)
    assert view[1] == 12
    assert lists(view.slice[:2].fetch()) == [10, 12]
    of_one = getattr(table.slice[:, "a"], method)(("p",), lambda a: (a + 1,))
    assert of_one[1] == (2,)
    assert getattr(table, method)(("p",), lambda a, b, c: a)[3] == 3


@pytest.mark.parametrize("method", ["transform", "transform_batch"])
@pytest.mark.parametrize(
    ("result", "what"),
    [(1, "1 values"), ((1, 2, 3), "3 values"), ({"p": 1}, r"keys \('p',\)")],
)
def test_transform_that_returns_something_else(table, method, result, what):
    view = getattr(table, method)(("p", "q"), lambda a, b, c: result)
    message = rf"TabularDataset.{method}: .* for the keys \('p', 'q'\), but it returned {what}"
    with pytest.raises(ValueError, match=message):
        view.get_examples(None, None)


def test_transform_of_nothing(table):
    for view in (
        table.slice[:0].transform(("p", "q"), lambda a, b, c: 1 / 0),
        table.slice[:0].transform_batch(("p", "q"), lambda a, b, c: (a, b)),
    ):
        assert view.mode is tuple
        assert lists(view.fetch()) == ([], [])


def test_transform_finds_its_mode_once(table):
    calls = []
    view = table.transform(("p",), lambda a, b, c: calls.append(a) or (a,))
    assert [view.mode, view.mode] == [tuple, tuple]
    assert calls == [0]


def test_convert(table):
    x, y = table.convert(([1, 2], [np.zeros(3), np.ones(3)]))
    np.testing.assert_array_equal(x, [1, 2])
    np.testing.assert_array_equal(y, [[0, 0, 0], [1, 1, 1]])
    array = np.ones(2)
    assert table.convert({"a": array})["a"] is array
    assert table.slice[:0].convert([]).shape == (0,)
    np.testing.assert_array_equal(
        table.slice[:2, "b"].convert(table.slice[:2, "b"].fetch()), [10, 11]
    )


def test_with_converter(table, other):
    view = table.with_converter(lambda *args, **names: (args, names))
    data = view.slice[:2, ("a",)].fetch()
    assert lists(view.convert(data)) == (([0, 1],), {})
    for derived in (
        view.slice[:2],
        view.asdict(),
        view.concat(table),
        view.join(other),
        view.transform("p", lambda a, b, c: a),
    ):
        assert derived.convert((1, 2)) == ((1, 2), {})
        assert derived.convert({"a": 1}) == ((), {"a": 1})
        assert derived.convert([1]) == (([1],), {})
    assert lists(other.join(view).convert(([1],))) == ([1],)


def test_views_travel_to_other_processes(table):
    view = table.join(Table(("x", "y", "z"))).slice[3:, ("x", "a")].asdict().concat()
    assert pickle.loads(pickle.dumps(view))[0] == {"x": 3, "a": 3}


def test_an_iterator_and_a_converter(table):
    iterator = iterators.SerialIterator(table.asdict(), 4, shuffle=False)
    batch = concat_examples(next(iterator))
    np.testing.assert_array_equal(batch["b"], [10, 11, 12, 13])


class Squares(tabular.DelegateDataset):
    def __init__(self):
        columns = (
            ("a", np.arange(10)),
            ("b", self.get_b),
            ("c", [3, 1, 4, 5, 9, 2, 6, 8, 7, 0]),
            (("d", "e"), self.get_de),
        )
        super().__init__(tabular.from_data(columns))

    def get_b(self, i):
        return f"b[{i}]"

    def get_de(self, i):
        return {"d": f"d[{i}]", "e": f"e[{i}]"}


def test_delegate_dataset():
    dataset = Squares()
    assert len(dataset) == 10
    assert dataset.keys == ("a", "b", "c", "d", "e")
    assert dataset[0] == (0, "b[0]", 3, "d[0]", "e[0]")
    assert dataset.slice[[2, 1], ("e", "a")][:] == [("e[2]", 2), ("e[1]", 1)]
    assert lists(dataset.slice[:3, "c"].convert(dataset.slice[:3, "c"].fetch())) == [3, 1, 4]


A, B = np.arange(5), list("vwxyz")


@pytest.mark.parametrize(
    ("data", "example", "keys"),
    [
        (A, 1, None),
        (B, "w", None),
        ([("a", A), B], B, None),  # a list is one column
        (range(3), 1, None),
        (("a", A), 1, ("a",)),
        ((A, B), (1, "w"), None),
        ((("a", A), ("b", B)), (1, "w"), ("a", "b")),
        ((A, ("x", lambda i: i * 3)), (1, 3), None),
        ((A, (("p", "q"), lambda i: (i, -i))), (1, 1, -1), None),
        ((("a", A), (("p", "q"), lambda i: {"q": -i, "p": i})), (1, 1, -1), ("a", "p", "q")),
        ({"a": A, "b": B}, {"a": 1, "b": "w"}, ("a", "b")),
        ({"a": A, ("p", "q"): lambda i: (i, 2 * i)}, {"a": 1, "p": 1, "q": 2}, ("a", "p", "q")),
        ({"a": B, "t": lambda i: (i, i)}, {"a": "w", "t": (1, 1)}, ("a", "t")),
        (([1, 2],), (2,), None),
    ],
)
def test_from_data(data, example, keys):
    dataset = tabular.from_data(data)
    assert dataset[1] == example
    assert keys is None or dataset.keys == keys
    expected = {tuple: tuple, dict: dict}.get(type(data))
    assert dataset.mode is (None if keys == ("a",) else expected)


@pytest.mark.parametrize(
    ("data", "example", "mode"),
    [
        (("x", lambda i: i * 3), 3, None),
        ((("p", "q"), lambda i: (i, -i)), (1, -1), tuple),
        ((("p", "q"), lambda i: {"p": i, "q": -i}), {"p": 1, "q": -1}, dict),
        ({"a": lambda i: i}, {"a": 1}, dict),
        ({("p", "q"): lambda i: (i, i)}, {"p": 1, "q": 1}, dict),
    ],
)
def test_from_functions_alone(data, example, mode):
    dataset = tabular.from_data(data, size=4)
    assert (len(dataset), dataset.mode, dataset[1]) == (4, mode, example)
    with pytest.raises(ValueError, match="size must be passed if all columns are functions"):
        tabular.from_data(data)


def test_columns_keep_their_kind():
    array, strings, made = tabular.from_data((A, B, ("x", str))).slice[1:3].fetch()
    assert isinstance(array, np.ndarray)
    assert (strings, made) == (["w", "x"], ["1", "2"])
    pairs = tabular.from_data((A, A)).slice[[4, 0]].fetch()
    assert lists(pairs) == ([4, 0], [4, 0])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((A, [1, 2]), r"columns must have one length, but the lengths are \[2, 5\]"),
        ((lambda i: i), "a function needs a key"),
        ((A, lambda i: i), "a function needs a key"),
        ((), "data must have at least one column"),
        ({}, "data must have at least one column"),
        ("abc", "a column must be a list, an array, or a pair .* not 'abc'"),
        ((A, (1, 2)), r"a column must be .* not \(1, 2\)"),
        ((("p", "q"), [1, 2]), "column 'p' is the string 'q'"),
        ({("p", "q"): A}, r"the values for several keys \('p', 'q'\) must be a function"),
        (5, "a column must be a list.* not 5"),
    ],
)
def test_from_data_rejects(data, message):
    with pytest.raises(ValueError, match=f"from_data: {message}"):
        tabular.from_data(data)


def test_a_size_that_is_not_the_data_s():
    assert len(tabular.from_data(A, size=5)) == 5
    with pytest.raises(ValueError, match=r"one length, but the lengths are \[3, 5\]"):
        tabular.from_data(A, size=3)
