import pickle
import re

import numpy as np
import pytest

from mpchain.datasets import Vocabulary

TEXTS = ["b a b c", "a b d", ["c", "e e"]]


def test_frequent_words_come_first_and_ties_in_their_order():
    vocabulary = Vocabulary.build(TEXTS)
    assert vocabulary.words == ["<unk>", "b", "a", "c", "d", "e e"]
    assert len(vocabulary) == 6
    assert "b" in vocabulary
    assert "x" not in vocabulary
    assert (vocabulary["a"], vocabulary["x"]) == (2, 0)


def test_limits():
    assert Vocabulary.build(TEXTS, max_size=3).words == ["<unk>", "b", "a"]
    assert Vocabulary.build(TEXTS, min_count=2).words == ["<unk>", "b", "a", "c"]
    assert Vocabulary.build(TEXTS, max_size=1).words == ["<unk>"]
    assert Vocabulary.build([]).words == ["<unk>"]


def test_special_words_are_there_once():
    texts = ["<eos> a <eos> <eos>", "a b"]
    specials = ["<pad>", "<unk>", "<eos>"]
    vocabulary = Vocabulary.build(texts, specials=specials)
    assert vocabulary.words == [*specials, "a", "b"]
    assert vocabulary.encode("a <eos> x").tolist() == [3, 2, 1]


def test_texts_become_numbers_and_words_again():
    split = re.compile(r"[a-z']+|[.,]").findall
    vocabulary = Vocabulary.build(["don't stop, don't."], split=split)
    numbers = vocabulary.encode("don't, please.")
    assert (numbers.dtype, numbers.tolist()) == (np.int32, [1, 3, 0, 4])
    assert vocabulary.decode(numbers) == ["don't", ",", "<unk>", "."]
    assert vocabulary.encode(["stop", "stop"]).tolist() == [2, 2]
    assert vocabulary.encode("").shape == vocabulary.encode([]).shape == (0,)
    assert vocabulary.decode([]) == []
    again = pickle.loads(pickle.dumps(vocabulary))
    assert again.encode("stop,").tolist() == [2, 3]


def test_words_of_a_file():
    vocabulary = Vocabulary("<unk>\na\nb".split("\n"), unknown="<unk>")
    assert vocabulary.encode("b a z").tolist() == [2, 1, 0]


def test_without_an_unknown_word():
    vocabulary = Vocabulary.build(["a b"], specials=(), unknown=None)
    assert vocabulary.words == ["a", "b"]
    with pytest.raises(KeyError, match="'c' is not one of the words, and unknown is None"):
        vocabulary.encode("a c")


@pytest.mark.parametrize("numbers", [[2], [-1], np.array([0, 5])])
def test_numbers_without_a_word(numbers):
    with pytest.raises(IndexError, match=f"from 0 to 1, not {numbers[-1]}"):
        Vocabulary("ab").decode(numbers)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="'a' occurs twice"):
        Vocabulary(["a", "b", "a"])
    with pytest.raises(ValueError, match="one of the words, not 'c'"):
        Vocabulary(["a", "b"], unknown="c")
    with pytest.raises(ValueError, match="special words, 1, not 0"):
        Vocabulary.build(["a"], max_size=0)
    with pytest.raises(ValueError, match="one of the words, not '<unk>'"):
        Vocabulary.build(["a"], specials=["<pad>"])
