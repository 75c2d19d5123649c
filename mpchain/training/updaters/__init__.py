"""Updaters: what one iteration of training does."""

from mpchain.training.updaters.multiprocess_parallel import MultiprocessParallelUpdater
from mpchain.training.updaters.parallel import ParallelUpdater
from mpchain.training.updaters.standard import StandardUpdater
from mpchain.training.updaters.updater import Updater

__all__ = ["MultiprocessParallelUpdater", "ParallelUpdater", "StandardUpdater", "Updater"]
