"""``get_trigger``, under the module name that programs for Chainer use."""

from mpchain.training.triggers import get_trigger as get_trigger
