"""``get_trigger`` under the name that programs know."""

from mpchain.training.triggers import get_trigger as get_trigger
