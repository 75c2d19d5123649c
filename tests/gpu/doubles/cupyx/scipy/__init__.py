"""Functions of SciPy on the imitated device."""
