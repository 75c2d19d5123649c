"""Tests the reading of files and file objects, and the replacement of zipfile's checksums."""

import gzip
import io
import os
import zipfile
import zlib

import numpy as np
import pytest

from mpchain import links as L
from mpchain import serializers
from mpchain.serializers import files

PAIRS = {
    "npz": (serializers.save_npz, serializers.load_npz),
    "safetensors": (serializers.save_safetensors, serializers.load_safetensors),
}


@pytest.fixture(params=PAIRS)
def pair(request):
    return PAIRS[request.param]


def test_what_was_loaded_does_not_change_with_the_file(pair, tmp_path):
    save, load = pair
    source, link, lazy = L.Linear(3, 2), L.Linear(3, 2), L.Linear(None, 2)
    save(tmp_path / "x", source)
    for each in (link, lazy):
        load(tmp_path / "x", each)
    with open(tmp_path / "x", "r+b") as file:
        file.write(bytes(os.path.getsize(tmp_path / "x")))
    for each in (link, lazy):
        np.testing.assert_array_equal(each.W.array, source.W.array)


def test_objects_of_other_classes_than_files(pair, tmp_path):
    save, load = pair
    source, stream = L.Linear(3, 2), io.BytesIO()
    save(stream, source)
    with gzip.open(tmp_path / "x", "wb") as file:
        file.write(stream.getvalue())
    stream.seek(0)
    with gzip.open(tmp_path / "x") as packed, open(tmp_path / "y", "w+b") as both:
        both.write(stream.getvalue())
        both.seek(0)
        for file in (stream, packed, both):
            link = L.Linear(3, 2)
            load(file, link)
            np.testing.assert_array_equal(link.W.array, source.W.array)


def test_a_file_that_begins_in_the_middle_of_another(pair, tmp_path):
    save, load = pair
    source, link, stream = L.Linear(3, 2), L.Linear(3, 2), io.BytesIO()
    save(stream, source)
    (tmp_path / "x").write_bytes(b"something else" + stream.getvalue())
    with open(tmp_path / "x", "rb") as file:
        file.seek(len(b"something else"))
        load(file, link)
    np.testing.assert_array_equal(link.W.array, source.W.array)


@pytest.mark.parametrize("n_lost", [1, 100])
def test_a_truncated_file_is_an_error(pair, tmp_path, n_lost):
    save, load = pair
    link = L.Linear(3, 2)
    before = link.W.array.copy()
    save(tmp_path / "x", L.Linear(3, 2))
    os.truncate(tmp_path / "x", os.path.getsize(tmp_path / "x") - n_lost)
    with pytest.raises(serializers.SerializationError, match="x"):
        load(tmp_path / "x", link)
    np.testing.assert_array_equal(link.W.array, before)


def test_an_empty_file_is_read(tmp_path):
    (tmp_path / "x").touch()
    with open(tmp_path / "x", "rb") as file:
        assert files.view_of(file) == b""


def test_the_function_of_checksums_is_back_when_all_threads_have_left(monkeypatch):
    monkeypatch.setattr(files, "_replaced", [])
    monkeypatch.setattr(zipfile, "crc32", zlib.crc32)
    first, second = files.fast_checksums(), files.fast_checksums()
    for block, function in (
        (first.__enter__, files.crc32),
        (second.__enter__, files.crc32),
        (lambda: first.__exit__(None, None, None), files.crc32),
        (lambda: second.__exit__(None, None, None), zlib.crc32),
    ):
        block()
        assert zipfile.crc32 is function
