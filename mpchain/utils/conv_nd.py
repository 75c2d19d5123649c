"""Windows of arrays with any number of spatial axes, side by side."""

from mpchain.utils.conv import as_tuple, col2im_nd, im2col_nd

__all__ = ["as_tuple", "col2im_nd", "im2col_nd"]
