"""Discrete Fourier transforms of (real, imaginary) pairs."""

from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.joining import with_zeros
from mpchain.typing import Input, Output
from mpchain.utils.type_check import check
from mpchain.variable import Variable


def _adjoint(gys, real_shape, is_inverse, norm):
    other = {"backward": "forward", "forward": "backward"}[norm]
    return _transform.on(*with_zeros(gys, [real_shape] * 2), not is_inverse, other)


@differentiable(joint=_adjoint, n_arrays=2)
def _transform(real, imag, is_inverse, norm) -> tuple[Output, ...]:
    """Applies the discrete Fourier transform, or its inverse, along the last axis; ``norm`` is the
    argument of :func:`numpy.fft.fft`."""
    xp = get_array_module(real)
    function = xp.fft.ifft if is_inverse else xp.fft.fft
    y = function(real + imag * xp.asarray(1j, xp.result_type(real.dtype, xp.complex64)), norm=norm)
    return y.real.astype(real.dtype), y.imag.astype(imag.dtype)


def _pair(name, x):
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise TypeError(f"{name}: x must be a pair (real, imag), but is {type(x).__name__}")
    real, imag = x
    alike = real.shape == imag.shape and real.dtype == imag.dtype
    check(alike, name, "real and imag must have the same shape and dtype", real=real, imag=imag)
    fits = is_floating(real.dtype) and real.ndim > 0 and real.shape[-1] > 0
    check(fits, name, "real and imag must be floating point, with a last axis", real=real)
    return real, imag


def fft(x: tuple[Input, Input]) -> tuple[Variable, Variable]:
    """Discrete Fourier transform along the last axis: y[k] = sum over j of x[j] e^(-2 pi i jk/n).

    Args:
        x: the pair (real, imag) of Variables or arrays of the same shape, floating point.

    Returns:
        tuple of Variables: the real and the imaginary part.

    Raises:
        InvalidType: the two differ in shape or dtype, are not floating point, or their last axis is
            missing or empty.
        TypeError: ``x`` is not a pair.

    Example:
        >>> real, imag = F.fft((np.array([1.0, 0.0, 1.0, 0.0]), np.zeros(4)))
        >>> real.array
        array([2., 0., 2., 0.])
    """
    real, imag = _transform(*_pair("fft", x), False, "backward")
    return real, imag


def ifft(x: tuple[Input, Input]) -> tuple[Variable, Variable]:
    """Inverse of :func:`fft`: y[j] = (1/n) sum over k of x[k] e^(2 pi i jk/n).

    Args:
        x: the pair (real, imag) of Variables or arrays of the same shape, floating point.

    Returns:
        tuple of Variables: the real and the imaginary part.

    Raises:
        InvalidType: the two differ in shape or dtype, are not floating point, or their last axis is
            missing or empty.
        TypeError: ``x`` is not a pair.

    Example:
        >>> real, imag = F.ifft((np.array([2.0, 0.0, 2.0, 0.0]), np.zeros(4)))
        >>> real.array
        array([1., 0., 1., 0.])
    """
    real, imag = _transform(*_pair("ifft", x), True, "backward")
    return real, imag
