"""Categories of warnings."""


class PerformanceWarning(Warning):
    """Something works, but slower than it could."""
