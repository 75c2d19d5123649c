"""The one thread of a process that looks after all its watches."""

import atexit
import threading
import time
import weakref

from mpchain.distributed.watch.looking import LONGEST_PERIOD, period_of

_TIME_TO_END = 2.0


class WatchThread:
    """Lets each watch look at the others from time to time, as long as the watch exists."""

    def __init__(self):
        self._watches = weakref.WeakSet()
        self._thread = None
        self._stopped = threading.Event()

    def add(self, watch):
        """Begins to look after a watch."""
        self._watches.add(watch)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mpchain watch", daemon=True)
            self._thread.start()
            # It must not outlive MPI, which is finalised after this.
            atexit.register(self._end)

    def _run(self):
        while not self._stopped.wait(self._period()):
            for watch in list(self._watches):
                watch.look(time.monotonic())

    def _period(self):
        return min([period_of(watch.timeout) for watch in list(self._watches)] + [LONGEST_PERIOD])

    def _end(self):
        self._stopped.set()
        self._thread.join(_TIME_TO_END)
        for watch in list(self._watches):
            watch.tell_end()
