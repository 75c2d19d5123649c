"""Hooks that normalize the weights of links, and time links."""

from mpchain.link_hooks.spectral_normalization import SpectralNormalization
from mpchain.link_hooks.timer import TimerHook
from mpchain.link_hooks.weight_standardization import WeightStandardization
