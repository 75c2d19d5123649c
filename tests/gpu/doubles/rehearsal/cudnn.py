"""Loads the double of cuDNN under cuDNN's name, for rehearsals of the GPU doctor."""

import sys

import cudnn_double

sys.modules[__name__] = cudnn_double
