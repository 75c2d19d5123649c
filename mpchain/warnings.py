"""Categories of warnings."""


class PerformanceWarning(Warning):
    """The category of warnings that a computation is correct, but slower than necessary.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", PerformanceWarning)
    """
