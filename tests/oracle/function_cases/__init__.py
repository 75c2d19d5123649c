"""Calls of every function that Chainer 7.8.1 has, as text that both sides can read.

A case is a function's name, the text of its arguments, and what the names in that text stand for:
a shape (normal numbers), a list (a constant array of integers or truth values), or one of the
draws of :mod:`case`. Unless the case is ``forward_only``, gradients are compared for
every array of real numbers but those of ``fixed`` and ``mask``.
"""

from tests.oracle.function_cases import (
    array,
    connection,
    corner,
    loss,
    mathematics,
    normalization,
)
from tests.oracle.function_cases.case import CASES
