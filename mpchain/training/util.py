"""``get_trigger`` under the name that programs know."""

from mpchain.training.triggers import get_trigger

__all__ = ["get_trigger"]
