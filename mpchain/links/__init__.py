"""Links with parameters of their own: the family file a name is imported from says which kind."""

from mpchain.links.connection import (
    Convolution1D,
    Convolution2D,
    Convolution3D,
    ConvolutionND,
    Deconvolution1D,
    Deconvolution2D,
    Deconvolution3D,
    DeconvolutionND,
    Linear,
)
from mpchain.links.model import Classifier
from mpchain.links.normalization import BatchNormalization

__all__ = [
    "BatchNormalization",
    "Classifier",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
    "ConvolutionND",
    "Deconvolution1D",
    "Deconvolution2D",
    "Deconvolution3D",
    "DeconvolutionND",
    "Linear",
]
