import csv
import math
import pickle

import numpy as np
import pytest

from mpchain import config, using_config
from mpchain.dataset import concat_examples
from mpchain.datasets import TableDataset, split_dataset_random

COLUMNS = {
    "age": ["3", "5.5", "-1e2"],
    "color": ["red", "blue", "red"],
    "note": ["a, b", 'say "x"', "two\nlines"],
    "kind": ["yes", "no", "no"],
}


@pytest.fixture
def write(tmp_path):
    def write(columns=COLUMNS, name="table.csv", **options):
        path = tmp_path / name
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, **options)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values()))
        return path

    return write


def test_numbers_and_categories(write):
    table = TableDataset(write(), target="kind", inputs=["color", "age"])
    assert table.features == ["color=blue", "color=red", "age"]
    assert table.types == {"color": ["blue", "red"], "age": "number", "kind": ["no", "yes"]}
    np.testing.assert_array_equal(table.x, [[0, 1, 3], [1, 0, 5.5], [0, 1, -100]])
    assert table.x.dtype == np.float32
    assert (table.t.dtype, table.t.tolist()) == (np.int32, [1, 0, 0])
    x, t = concat_examples([table[0], table[2]])
    assert (x.shape, t.shape) == ((2, 3), (2,))


def test_a_number_as_target_and_none(write):
    table = TableDataset(write(), target="age", inputs=["color"])
    assert table[1][1].tolist() == [5.5]
    assert table.t.shape == (3, 1)
    table = TableDataset(write(), inputs=["age"])
    assert table.t is None
    assert [x.tolist() for x in table] == [[3.0], [5.5], [-100.0]]


def test_all_columns_but_the_target_are_inputs(write):
    table = TableDataset(write(), target="kind")
    columns = [name.partition("=")[0] for name in table.features]
    assert columns == ["age", *["color"] * 2, *["note"] * 3]
    assert 'note=say "x"' in table.features
    assert "note=two\nlines" in table.features


def test_other_files_get_the_types_of_the_training_data(write):
    train = TableDataset(write(), target="kind", inputs=["age", "color"])
    columns = {"kind": ["no"], "age": ["7"], "color": ["blue"], "more": ["x"]}
    test = TableDataset(
        write(columns, "test.csv"), target="kind", inputs=["age", "color"], types=train.types
    )
    assert test.features == train.features
    assert test.x.tolist() == [[7, 1, 0]]
    assert test.t.tolist() == [0]
    columns["color"] = ["green"]
    with pytest.raises(ValueError, match=r"row 0 of 'color' .* \['blue', 'red'\], not 'green'"):
        TableDataset(columns, "kind", ["age", "color"], types=train.types)


def test_types_that_are_given():
    columns = {"zip": ["1", "2"], "size": ["S", "L"], "y": [0.5, 1]}
    types = {"zip": "category", "size": ["S", "M", "L"]}
    table = TableDataset(columns, "y", types=types)
    assert table.features == ["zip=1", "zip=2", "size=S", "size=M", "size=L"]
    assert table.x.tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 0, 1]]
    with pytest.raises(ValueError, match="row 0 of 'size' must be a number, not 'S'"):
        TableDataset(columns, "y", types={"size": "number"})
    with pytest.raises(ValueError, match=r"the type of 'zip' must be 'number'.*not 'text'"):
        TableDataset(columns, "y", types={"zip": "text"})


def test_missing_values(write):
    columns = {"a": ["1", "", "3"], "b": ["x", "", "x"], "c": [None, math.nan, 2.5]}
    with pytest.raises(ValueError, match="row 1 of 'a' has no value; pass missing="):
        TableDataset(columns, inputs=["a"])
    table = TableDataset(columns, missing=-1)
    assert table.features == ["a", "b=", "b=x", "c"]
    assert table.x.tolist() == [[1, 0, 1, -1], [-1, 1, 0, -1], [3, 0, 1, 2.5]]
    assert math.isnan(TableDataset(columns, inputs=["a"], missing=math.nan).x[1, 0])


@pytest.mark.parametrize("value", ["nan", "inf", "1,5", "0x1", "1 000"])
def test_what_is_not_a_number_makes_categories(value):
    table = TableDataset({"a": ["1", value]})
    assert table.types == {"a": sorted(["1", value])}


def test_options_of_the_file(write, tmp_path):
    path = write({"ä": ["1"], "b": ["2"]}, delimiter=";")
    assert TableDataset(path, delimiter=";").features == ["ä", "b"]
    (tmp_path / "latin").write_bytes("ä,b\n\n1,2\n\n".encode("latin-1"))
    assert TableDataset(str(tmp_path / "latin"), encoding="latin-1").x.tolist() == [[1, 2]]


def test_dtype():
    with using_config("dtype", np.float16):
        assert TableDataset({"a": [1, 2]}).x.dtype == np.float16
    assert TableDataset({"a": [1, 2]}, dtype=np.float64).x.dtype == np.float64
    assert config.dtype == np.float32


def test_data_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"n": [1, 2], "w": [0.5, math.nan], "c": ["x", "y"], "b": [True, False]},
        index=["first", "second"],
    )
    table = TableDataset(frame, target="c", missing=0)
    assert table.features == ["n", "w", "b=False", "b=True"]
    assert table.x.tolist() == [[1, 0.5, 0, 1], [2, 0, 1, 0]]
    assert table.t.tolist() == [0, 1]


def test_split_and_processes(write):
    table = TableDataset(write(), target="kind", inputs=["age"])
    train, test = split_dataset_random(table, 2, seed=0)
    assert (len(train), len(test)) == (2, 1)
    assert sorted([*(float(x[0]) for x, _ in train), float(test[0][0][0])]) == [-100, 3, 5.5]
    assert pickle.loads(pickle.dumps(table))[1][0].tolist() == [5.5]


def test_table_without_rows(write):
    table = TableDataset(write({"a": [], "b": []}), target="b")
    assert len(table) == 0
    types = {"a": "number", "b": ["x", "y"]}
    table = TableDataset(write({"a": [], "b": []}), target="b", types=types)
    assert table.x.shape == (0, 1)
    assert table.t.shape == (0,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line must name the columns"),
        ("a,a\n1,2\n", r"each differently, not \['a', 'a'\]"),
        ("a,b\n1,2\n3\n", "line 3 must have 2 values, one for each column, not 1"),
        ("a,b\n1,2,3\n", "line 2 must have 2 values"),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"TableDataset: .*bad.csv: .*{message}"):
        TableDataset(path)


def test_wrong_arguments():
    columns = {"a": [1, 2], "b": [1]}
    with pytest.raises(ValueError, match="no column 'c'; known: a, b"):
        TableDataset(columns, "c")
    with pytest.raises(ValueError, match="no column 'd'"):
        TableDataset(columns, inputs=["a", "d"])
    with pytest.raises(ValueError, match="no column 'e'"):
        TableDataset(columns, inputs=["a"], types={"e": "number"})
    with pytest.raises(ValueError, match=r"one length, but have \{'a': 2, 'b': 1\}"):
        TableDataset(columns)
