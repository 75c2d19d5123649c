"""Updaters: what one iteration of training does."""

from mpchain.training.updaters.multiprocess_parallel import (
    MultiprocessParallelUpdater as MultiprocessParallelUpdater,
)
from mpchain.training.updaters.parallel import ParallelUpdater as ParallelUpdater
from mpchain.training.updaters.standard import StandardUpdater as StandardUpdater
from mpchain.training.updaters.updater import Updater as Updater
