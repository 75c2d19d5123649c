"""Warnings about names that nothing reports, which are often misspelled."""

import warnings
from collections.abc import Collection, Iterable

from mpchain.training.named_parts import listing


class AwaitedKeys:
    """Names of values that an extension waits for.

    Args:
        extension: the extension's class, for the warning.
        keys: the names.

    Example:
        >>> awaited = AwaitedKeys("LogReport", ["loss"])
        >>> awaited.see({"loss": 0.5})
        >>> awaited.warn()
    """

    def __init__(self, extension: str, keys: Iterable[str]) -> None:
        self._extension = extension
        self._missing = list(dict.fromkeys(keys))
        self._others: set[str] = set()
        self._is_complete = False

    def see(self, observation: Collection[str], is_complete: bool = True) -> None:
        """Records which names were reported.

        Args:
            observation: the names.
            is_complete: whether an interval ends here, at which all should have been reported.
        """
        self._is_complete |= is_complete
        if self._missing:
            self._missing = [key for key in self._missing if key not in observation]
            self._others.update(observation)

    def warn(self) -> None:
        """Warns, after training, of the names that were never reported in a whole interval."""
        if self._missing and self._is_complete:
            warnings.warn(
                f"{self._extension}: never reported: {listing(self._missing)}; "
                f"reported: {', '.join(map(repr, sorted(self._others)))}",
                UserWarning,
            )
