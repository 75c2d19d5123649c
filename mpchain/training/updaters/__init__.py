"""Updaters, which perform one iteration of training."""

import importlib
from typing import TYPE_CHECKING, Any

from mpchain.training.updaters.parallel import ParallelUpdater as ParallelUpdater
from mpchain.training.updaters.standard import StandardUpdater as StandardUpdater
from mpchain.training.updaters.updater import Updater as Updater

if TYPE_CHECKING:  # __getattr__ imports these names from a higher layer
    from mpchain.distributed.multiprocess_parallel import (
        MultiprocessParallelUpdater as MultiprocessParallelUpdater,
    )

__all__ = ["MultiprocessParallelUpdater", "ParallelUpdater", "StandardUpdater", "Updater"]


def __getattr__(name: str) -> Any:
    if name != "MultiprocessParallelUpdater":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    above = importlib.import_module("mpchain.distributed.multiprocess_parallel")
    return above.MultiprocessParallelUpdater
