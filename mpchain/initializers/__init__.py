"""Initial values of parameters: the family file that a name is imported from says which kind."""

from mpchain.initializer import Initializer, get_fans
from mpchain.initializers.constant import Constant, Identity, NaN, One, Zero
from mpchain.initializers.generation import generate_array, get_initializer
from mpchain.initializers.orthogonal import Orthogonal
from mpchain.initializers.random import (
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    LeCunNormal,
    LeCunUniform,
    Normal,
    Uniform,
)
from mpchain.initializers.sampling import DownsamplingConvFilter, UpsamplingDeconvFilter

__all__ = [
    "Constant",
    "DownsamplingConvFilter",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "Initializer",
    "LeCunNormal",
    "LeCunUniform",
    "NaN",
    "Normal",
    "One",
    "Orthogonal",
    "Uniform",
    "UpsamplingDeconvFilter",
    "Zero",
    "generate_array",
    "get_fans",
    "get_initializer",
]
