"""Marks for a profiler, which nobody sees."""


def RangePush(message, id_color=-1):
    """Does nothing."""


def RangePop():
    """Does nothing."""
