"""Marks for a profiler, which have no effect."""


def RangePush(message, id_color=-1):
    """Does nothing."""


def RangePop():
    """Does nothing."""
