"""Tests TextDataset against the lines that Python reads."""

import itertools
import pathlib
import pickle

import numpy as np
import pytest

from mpchain.datasets import TextDataset

pytestmark = pytest.mark.slow

TEXTS = {
    "mixed": "héllo\nb\r\nc\rd\n\n\r\rlast",
    "ended": "one\ntwo\n",
    "carriage": "one\rtwo\r",
    "windows": "one\r\ntwo\r\n\r\n",
    "empty": "",
    "line": "\n",
    "one": "no end",
    # Some characters contain bytes that look like ends of lines.
    "east": "日本\n語\u0a0d\u0d0a\n\u0a00\u000d\n",
}
ENCODINGS = [
    "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be",
]  # fmt: skip


def lines_of(path, **options):
    with open(path, **options) as file:
        return list(file)


def combinations():
    for name, encoding in itertools.product(TEXTS, ENCODINGS):
        yield name, encoding
    for name in sorted(TEXTS.keys() - {"east"}):
        yield name, "latin-1"
    yield from (("ended", "ascii"), ("ended", "cp1252"), ("ended", "shift_jis"))


@pytest.mark.parametrize(("name", "encoding"), list(combinations()))
def test_lines(tmp_path, name, encoding):
    path = tmp_path / "file.txt"
    path.write_bytes(TEXTS[name].encode(encoding))
    for newline in (None, "", "\n", "\r", "\r\n"):
        expected = lines_of(path, encoding=encoding, newline=newline)
        dataset = TextDataset(path, encoding=encoding, newline=newline)
        assert len(dataset) == len(expected), repr(newline)
        assert dataset[:] == expected
        assert [dataset[i] for i in range(-len(expected), 0)] == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_byte_orders_and_their_marks(tmp_path, encoding):
    path = tmp_path / "file.txt"
    text = "one\ntwo\u0a0d\n"
    for order in ("-le", "-be"):
        path.write_bytes("\ufeff".encode(encoding + order) + text.encode(encoding + order))
        assert TextDataset(path, encoding=encoding)[:] == ["one\n", "two\u0a0d\n"]
    path.write_bytes(text.encode(encoding)[len("\ufeff".encode(encoding + "-le")) :])
    assert TextDataset(path, encoding=encoding)[:] == ["one\n", "two\u0a0d\n"]


def test_a_mark_that_is_missing(tmp_path):
    (tmp_path / "file.txt").write_text("one\ntwo\n", encoding="utf-8")
    assert TextDataset(tmp_path / "file.txt", encoding="utf-8-sig")[:] == ["one\n", "two\n"]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.txt").write_text("a1 x\na2\na3 x\n")
    (tmp_path / "b.txt").write_bytes("ä1\nä2\nä3".encode("latin-1"))
    return [tmp_path / "a.txt", str(tmp_path / "b.txt")]


def test_several_files(files):
    dataset = TextDataset(files, encoding=["ascii", "latin-1"])
    assert dataset[:] == [("a1 x\n", "ä1\n"), ("a2\n", "ä2\n"), ("a3 x\n", "ä3")]
    assert TextDataset(files[:1], encoding="ascii")[1] == ("a2\n",)


def test_the_encoding_is_that_of_open(files):
    assert TextDataset(files[0])[:] == lines_of(files[0])


def test_filter(files):
    dataset = TextDataset(
        files, encoding="latin-1", filter_func=lambda a, b: "x" in a and b.endswith("\n")
    )
    assert dataset[:] == [("a1 x\n", "ä1\n")]
    assert TextDataset(files[0], filter_func=lambda a: "x" not in a)[:] == ["a2\n"]
    assert len(TextDataset(files[0], filter_func=lambda a: False)) == 0


def test_errors(files):
    assert TextDataset(files[1], encoding="ascii", errors="ignore")[0] == "1\n"
    assert TextDataset(files[1], "ascii", "replace")[0] == "\ufffd1\n"
    dataset = TextDataset(files[1], encoding="utf-8")
    with pytest.raises(ValueError, match=rf"line 3 of {files[1]}: 'utf-8' codec can't decode"):
        dataset[2]


def test_wrong_arguments(files, tmp_path):
    (tmp_path / "c.txt").write_text("c1\n")
    with pytest.raises(ValueError, match=r"same number of lines, but these have \[3, 1\]"):
        TextDataset([files[0], tmp_path / "c.txt"])
    with pytest.raises(ValueError, match="paths must name at least one file"):
        TextDataset([])
    with pytest.raises(ValueError, match=r"\['ascii'\] must have one entry for each of the 2"):
        TextDataset(files, encoding=["ascii"])
    with pytest.raises(ValueError, match="newline must be None"):
        TextDataset(files[0], newline="x")
    with pytest.raises(LookupError, match="unknown encoding: abacus"):
        TextDataset(files[0], encoding="abacus")
    with pytest.raises(FileNotFoundError):
        TextDataset(tmp_path / "missing.txt")


def test_it_travels_to_other_processes(files, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    dataset = TextDataset("a.txt", filter_func=lambda a: "x" in a)
    content = pickle.dumps(dataset)
    monkeypatch.chdir("/")
    copy = pickle.loads(content)
    assert copy[:] == dataset[:] == ["a1 x\n", "a3 x\n"]
    assert b"a3 x" not in content


def test_random_texts(tmp_path):
    random = np.random.RandomState(0)
    letters = list("ab\n\r\u0a0d\u0d0a\u0d00\u000a€")
    for seed in range(60):
        text = "".join(random.choice(letters, random.randint(0, 30)))
        encoding = ENCODINGS[seed % len(ENCODINGS)]
        path = tmp_path / f"{seed}.txt"
        path.write_bytes(text.encode(encoding))
        for newline in (None, "", "\n"):
            expected = lines_of(path, encoding=encoding, newline=newline)
            assert TextDataset(path, encoding, newline=newline)[:] == expected, (seed, text)


def test_it_can_be_closed_and_read(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n", "utf-8")
    dataset = TextDataset(str(tmp_path / "a"), encoding="utf-8")
    for _ in range(2):
        dataset.close()
        assert not _is_open(tmp_path / "a")
        assert dataset[1] == "two\n"
        assert _is_open(tmp_path / "a")


def _is_open(path):
    return str(path) in pathlib.Path("/proc/self/maps").read_text("utf-8")
