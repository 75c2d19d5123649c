"""What a training loop does when its process is told to end."""

import contextlib
import signal
import threading


def _exit(number, frame):
    raise SystemExit(128 + number)


@contextlib.contextmanager
def sigterm_as_exit():
    """Within the context SIGTERM raises SystemExit, so that a training loop can clean up.

    Ctrl-C does the like through KeyboardInterrupt. Nothing changes where the program handles
    SIGTERM itself, or outside the main thread, where Python can set no handler.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
