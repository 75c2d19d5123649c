"""Functions that convert between arrays, with any number of spatial axes, and their windows."""

from mpchain.utils.conv import as_tuple as as_tuple
from mpchain.utils.conv import col2im_nd as col2im_nd
from mpchain.utils.conv import im2col_nd as im2col_nd
