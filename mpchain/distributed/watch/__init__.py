"""Every collective leaves a fingerprint; a mismatch or a missing rank is reported, not hung on."""

from mpchain.distributed.watch.fingerprints import CollectiveMismatchError, watched
from mpchain.distributed.watch.gpu import GpuWork
from mpchain.distributed.watch.watchdog import (
    DEFAULT_TIMEOUT,
    Watch,
    check_timeout,
    waiting_for,
)

__all__ = [
    "DEFAULT_TIMEOUT",
    "CollectiveMismatchError",
    "GpuWork",
    "Watch",
    "check_timeout",
    "watched",
]
