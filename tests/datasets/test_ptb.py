"""Tests the loader of the Penn Treebank, on small texts in the official format that the tests
write."""

import hashlib

import numpy as np
import pytest

from mpchain import datasets
from mpchain.datasets import ptb

TEXTS = {
    "train": " the cat <unk> \n the dog \n",
    "valid": " a cat \n",
    "test": " the bird N \n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, publish):
    for name, text in TEXTS.items():
        (tmp_path / f"ptb.{name}.txt").write_text(text)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in TEXTS.items()}
    publish(ptb, "ptb.", digests)
    return tmp_path


def test_words_and_vocabulary(forbid_downloads):
    parts = datasets.get_ptb_words()
    assert [part.dtype for part in parts] == [np.int32] * 3
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3, 0, 4, 3], [5, 1, 3], [0, 6, 7, 3]]
    forbid_downloads()
    vocabulary = datasets.get_ptb_words_vocabulary()
    assert list(vocabulary) == ["the", "cat", "<unk>", "<eos>", "dog", "a", "bird", "N"]
    assert list(vocabulary.values()) == list(range(8))
    assert type(vocabulary["cat"]) is int
    words = {number: word for word, number in vocabulary.items()}
    assert " ".join(words[number] for number in parts[2]) == "the bird N <eos>"


def test_the_vocabulary_may_be_asked_for_first():
    assert datasets.get_ptb_words_vocabulary()["<eos>"] == 3


@pytest.mark.parametrize("function", ["get_ptb_words", "get_ptb_words_vocabulary"])
def test_a_text_that_is_not_the_official_one_is_refused(folder, function):
    (folder / "ptb.valid.txt").write_text("something else")
    with pytest.raises(OSError, match=rf"{function}: .*ptb.valid.txt must have the SHA-256 check"):
        getattr(datasets, function)()
