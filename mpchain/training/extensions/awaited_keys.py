"""What tells the user of names that nothing reports: misspelt ones, mostly."""

import warnings


class AwaitedKeys:
    """Names of values that an extension waits for.

    Args:
        extension (str): the extension's class, for the warning.
        keys: the names.
    """

    def __init__(self, extension, keys):
        self._extension = extension
        self._missing = list(dict.fromkeys(keys))
        self._others = set()
        self._is_complete = False

    def see(self, observation, is_complete=True):
        """Takes note of what was reported.

        Args:
            observation: the names.
            is_complete (bool): whether an interval ends here, at which all should have come.
        """
        self._is_complete |= is_complete
        if self._missing:
            self._missing = [key for key in self._missing if key not in observation]
            self._others.update(observation)

    def warn(self):
        """Warns, once training is over, of the names that never came in a whole interval."""
        if self._missing and self._is_complete:
            warnings.warn(
                f"{self._extension}: never reported: {', '.join(map(repr, self._missing))}; "
                f"reported: {', '.join(map(repr, sorted(self._others)))}",
                UserWarning,
            )
