"""Convolution with windows whose elements are moved."""

import numpy as np

from mpchain.functions.array import broadcast_to, concat, reshape
from mpchain.functions.contraction import matmul
from mpchain.functions.image import spatial_transformer_sampler
from mpchain.functions.padding import pad as pad_with
from mpchain.utils.conv import get_conv_outsize, spatial
from mpchain.utils.type_check import check
from mpchain.variable import as_variable
