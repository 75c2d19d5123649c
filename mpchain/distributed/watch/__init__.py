"""Records a fingerprint of every collective, so that a mismatch or a missing rank causes a report,
not a hang."""

from mpchain.distributed.watch.fingerprints import (
    CollectiveMismatchError as CollectiveMismatchError,
)
from mpchain.distributed.watch.fingerprints import watched as watched
from mpchain.distributed.watch.gpu import GpuWork as GpuWork
from mpchain.distributed.watch.losses import RanksLost as RanksLost
from mpchain.distributed.watch.notes import NeedsRestartError as NeedsRestartError
from mpchain.distributed.watch.notes import creating as creating
from mpchain.distributed.watch.notes import note as note
from mpchain.distributed.watch.watchdog import DEFAULT_TIMEOUT as DEFAULT_TIMEOUT
from mpchain.distributed.watch.watchdog import Watch as Watch
from mpchain.distributed.watch.watchdog import add_look as add_look
from mpchain.distributed.watch.watchdog import call_at_end as call_at_end
from mpchain.distributed.watch.watchdog import check_timeout as check_timeout
from mpchain.distributed.watch.watchdog import waiting_for
