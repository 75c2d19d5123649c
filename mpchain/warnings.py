"""Categories of warnings."""


class PerformanceWarning(Warning):
    """Something works, but slower than it could.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", PerformanceWarning)
    """
