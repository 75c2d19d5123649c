"""The version of mpchain."""

__version__ = "0.1.0"
