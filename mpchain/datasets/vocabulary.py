"""The words of texts and their numbers."""

import collections
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from mpchain.typing import Array


class Vocabulary:
    """Numbered words, to convert texts to arrays of numbers, and numbers to words.

    Args:
        words: the words in the order of their numbers; :meth:`build` collects them from texts.
        unknown: the word that replaces all other words; None refuses other words.
        split: function of a text (str) that returns its words.

    Attributes:
        words: list of the words.
        unknown: the argument of the same name.

    Raises:
        ValueError: a word occurs twice, or ``unknown`` is not one of the words.

    Example:
        >>> vocabulary = mpchain.datasets.Vocabulary(["<unk>", "to", "be"], unknown="<unk>")
        >>> vocabulary.encode("to be or not to be")
        array([1, 2, 0, 0, 1, 2], dtype=int32)
        >>> vocabulary.decode([1, 2])
        ['to', 'be']
    """

    def __init__(
        self,
        words: Iterable[str],
        unknown: str | None = None,
        split: Callable[[str], Sequence[str]] = str.split,
    ):
        self.words, self.unknown, self._split = list(words), unknown, split
        self._numbers = {word: i for i, word in enumerate(self.words)}
        if len(self._numbers) < len(self.words):
            twice = next(word for i, word in enumerate(self.words) if self._numbers[word] != i)
            raise ValueError(f"Vocabulary: words must differ, but {twice!r} occurs twice")
        if unknown is not None and unknown not in self._numbers:
            raise ValueError(f"Vocabulary: unknown must be one of the words, not {unknown!r}")

    @classmethod
    def build(
        cls,
        texts: Iterable[str | Sequence[str]],
        max_size: int | None = None,
        min_count: int = 1,
        *,
        specials: Sequence[str] = ("<unk>",),
        unknown: str | None = "<unk>",
        split: Callable[[str], Sequence[str]] = str.split,
    ) -> "Vocabulary":
        """Returns the vocabulary of texts: the special words, then other words, frequent words
        first.

        Equally frequent words are in the order of their first occurrence, so all ranks that read
        the same texts have the same numbers.

        Args:
            texts: an iterable of texts, or of sequences of words.
            max_size: the greatest number of words, including special words; None means no limit.
            min_count: the minimum number of occurrences of a word.
            specials: the first words of the vocabulary, whether or not they occur in the texts.
            unknown, split: see :class:`Vocabulary`.

        Raises:
            ValueError: ``max_size`` is less than the number of special words; or see
                :class:`Vocabulary`.

        Example:
            >>> mpchain.datasets.Vocabulary.build(["b a b", "c b a"], max_size=3).words
            ['<unk>', 'b', 'a']
        """
        n = None if max_size is None else max_size - len(specials)
        if n is not None and n < 0:
            raise ValueError(
                f"Vocabulary.build: max_size must be at least the number of special words, "
                f"{len(specials)}, not {max_size}"
            )
        counts = collections.Counter(
            word for text in texts for word in (split(text) if isinstance(text, str) else text)
        )
        for special in specials:
            del counts[special]
        frequent = [word for word, count in counts.most_common(n) if count >= min_count]
        return cls([*specials, *frequent], unknown, split)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._numbers

    def __getitem__(self, word: str) -> int:
        """Returns the number of a word.

        Raises:
            KeyError: the word is not in the vocabulary, and ``unknown`` is None.
        """
        number = self._numbers.get(word)
        if number is None:
            if self.unknown is None:
                raise KeyError(f"Vocabulary: {word!r} is not one of the words, and unknown is None")
            number = self._numbers[self.unknown]
        return number

    def encode(self, text: str | Sequence[str]) -> Array:
        """Returns the numbers of a text's words, or of a sequence of words, as an int32 array (n,).

        Raises:
            KeyError: a word is not in the vocabulary, and ``unknown`` is None.
        """
        words = self._split(text) if isinstance(text, str) else text
        return np.fromiter(map(self.__getitem__, words), np.int32, len(words))

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Returns the words that have the given numbers, which may be an integer array (n,).

        Raises:
            IndexError: there is no word with one of the numbers.
        """
        found = []
        for number in numbers:
            if not 0 <= number < len(self.words):
                raise IndexError(
                    f"Vocabulary.decode: numbers must be from 0 to {len(self.words) - 1}, "
                    f"not {number}"
                )
            found.append(self.words[int(number)])
        return found
