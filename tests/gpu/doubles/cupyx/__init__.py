"""The parts of cupyx that mpchain uses, on the imitated device."""


def scatter_add(a, slices, value):
    """Adds values at indices; deprecated, as in CuPy."""
    a.scatter_add(slices, value)
