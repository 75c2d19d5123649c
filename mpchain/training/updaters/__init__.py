"""Updaters: what one iteration of training does."""

from mpchain.training.updaters.standard import StandardUpdater
from mpchain.training.updaters.updater import Updater

__all__ = ["StandardUpdater", "Updater"]
