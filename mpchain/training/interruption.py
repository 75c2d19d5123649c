"""What a training loop does when its process is told to end."""

import contextlib
import os
import signal
import threading


class TrainingInterrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C has ended a training loop after a complete iteration.

    Uncaught it ends the program without a traceback, with the exit code of shells for Ctrl-C.
    """

    def __init__(self, message):
        super().__init__(message)
        self.code = 128 + signal.SIGINT


class Interruption:
    """Within the context, Ctrl-C and SIGTERM are noted at first; the second of them raises.

    Nothing changes where the program handles a signal itself, or outside the main thread, where
    Python can set no handlers.

    Attributes:
        number: the signal that was noted; None if there was none.
    """

    _defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

    def __init__(self):
        self.number = None
        self._replaced = []

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number, default in self._defaults.items():
                if signal.getsignal(number) is default:
                    signal.signal(number, self._note)
                    self._replaced.append(number)
        return self

    def __exit__(self, exception_class, exception, traceback):
        for number in self._replaced:
            signal.signal(number, self._defaults[number])
        # What came too late for the loop, such as in finalizers, is not forgotten.
        if exception is None and self.number is not None:
            self.raise_for(self.number)

    def _note(self, number, frame):
        if self.number is not None:
            self._raise_at_once(number)
        self.number = number
        # Not print: the signal may have come in the middle of another one.
        with contextlib.suppress(OSError):
            os.write(
                2,
                f"{signal.Signals(number).name}: training ends after this iteration; "
                "send it again to end at once\n".encode(),
            )

    def _raise_at_once(self, number):
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def raise_for(self, number):
        """Raises the exception by which a signal ends training after a complete iteration.

        Raises:
            TrainingInterrupted: for Ctrl-C; it is a KeyboardInterrupt and a SystemExit.
            SystemExit: for SIGTERM, with 128 and its number as the exit code.
        """
        if number == signal.SIGINT:
            raise TrainingInterrupted("training was interrupted after a complete iteration")
        raise SystemExit(128 + number)
