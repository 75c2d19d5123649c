"""The geometry of the windows of convolution and pooling, with checks of the arguments."""

from typing import Any

from mpchain.kernels.window import Window
from mpchain.typing import Input, Sizes
from mpchain.utils.conv import get_conv_outsize, get_deconv_outsize, spatial
from mpchain.utils.type_check import check, fail


def _window(ksize, stride, pad, dilate, in_size, groups, cover_all):
    axes = zip(in_size, ksize, stride, pad, dilate)
    out_size = tuple(get_conv_outsize(n, k, s, p, cover_all, d) for n, k, s, p, d in axes)
    return Window(ksize, stride, pad, dilate, groups, in_size, out_size)


def check_axes(name: str, x: Input, n: int | None) -> None:
    """Raises InvalidType unless ``x`` has ``n`` spatial axes, or at least one if ``n`` is None.

    Example:
        >>> check_axes("max_pooling_2d", np.zeros((1, 3, 8, 8)), 2)
    """
    if n is None:
        check(x.ndim > 2, name, "x must have 3 axes or more", x=x)
    elif x.ndim != n + 2:
        fail(name, f"x must have {n + 2} axes", x=x)


def windows_over(
    name: str,
    x: Input,
    ksize: Sizes,
    stride: Sizes,
    pad: Sizes = 0,
    dilate: Sizes = 1,
    groups: int = 1,
    cover_all: bool = False,
    **shown: Any,
) -> Window:
    """Returns the windows that lie on the spatial axes of ``x``.

    Args:
        name: name of the function in error messages.
        x: Variable or array (N, C, d1, ...).
        shown: other arguments to show in error messages.

    Raises:
        InvalidType: a size has the wrong length or is out of range, or no window fits.

    Example:
        >>> windows_over("f", np.zeros((1, 3, 8, 8)), 3, 2, pad=1).out_size
        (4, 4)
    """
    sizes = {"ksize": ksize, "stride": stride, "pad": pad, "dilate": dilate}
    k, s, p, d = spatial(name, x.ndim - 2, **sizes)
    window = _window(k, s, p, d, x.shape[2:], groups, cover_all)
    if min(window.out_size) <= 0:
        rule = f"the output size {window.out_size} must be positive"
        fail(name, rule, x=x, **shown or {"ksize": ksize})
    return window


def windows_onto(
    name: str,
    y: Input,
    ksize: Sizes,
    stride: Sizes,
    pad: Sizes = 0,
    dilate: Sizes = 1,
    groups: int = 1,
    cover_all: bool = False,
    outsize: Sizes | None = None,
    **shown: Any,
) -> Window:
    """Returns the windows of which there is one for each element on the spatial axes of ``y``.

    Args:
        name: name of the function in error messages, where ``y`` is called ``x``.
        y: Variable or array (N, C, d1, ...).
        outsize: spatial size of the array on which the windows lie; None means the smallest
            possible size.
        shown: other arguments to show in error messages.

    Raises:
        InvalidType: a size has the wrong length or is out of range, or ``outsize`` does not fit.

    Example:
        >>> windows_onto("f", np.zeros((1, 3, 4, 4)), 3, 2, pad=1).in_size
        (7, 7)
    """
    n, y_size = y.ndim - 2, y.shape[2:]
    steps = spatial(name, n, ksize=ksize, stride=stride, pad=pad, dilate=dilate)
    if outsize is None:
        axes = zip(y_size, *steps)
        outsize = tuple(get_deconv_outsize(m, k, s, p, cover_all, d) for m, k, s, p, d in axes)
        if min(outsize) <= 0:
            fail(name, f"the output size {outsize} must be positive", x=y, **shown)
    (in_size,) = spatial(name, n, outsize=outsize)
    k, s, p, d = steps
    window = _window(k, s, p, d, in_size, groups, cover_all)
    if window.out_size != y_size:
        rule = f"windows over outsize {window.in_size} must give {y_size}, the size of x, not "
        fail(name, f"{rule}{window.out_size}", x=y, **shown)
    return window
