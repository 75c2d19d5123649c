"""The names of all optimizers, and of those that step by rules of single parameters."""

from mpchain import GradientMethod, optimizers

ALL = [name for name in vars(optimizers) if name[0].isupper() and not name.endswith("Rule")]

OF_RULES = [name for name in ALL if issubclass(getattr(optimizers, name), GradientMethod)]
"""All optimizers except LBFGS, which ``test_lbfgs.py`` tests."""
