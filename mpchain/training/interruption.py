"""Signals that end a training loop after a complete iteration."""

import contextlib
import os
import signal
import threading
from types import TracebackType
from typing import NoReturn


class TrainingInterrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C has ended a training loop after a complete iteration.

    Uncaught it ends the program without a traceback, with the exit code of shells for Ctrl-C.

    Example:
        >>> TrainingInterrupted("after iteration 5").code
        130
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 128 + signal.SIGINT


class Interruption:
    """Context manager: records the first Ctrl-C or SIGTERM; the second raises at once.

    Signals that the program handles itself are left to it. So are all outside the main thread,
    where Python can set no handlers.

    Attributes:
        number: the signal that was recorded; None before any.

    Example:
        >>> with Interruption() as interruption:
        ...     print(interruption.number)
        None
    """

    _defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

    def __init__(self) -> None:
        self.number: int | None = None
        self._replaced = []

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for number, default in self._defaults.items():
                if signal.getsignal(number) is default:
                    signal.signal(number, self._note)
                    self._replaced.append(number)
        return self

    def __exit__(
        self,
        exception_class: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number in self._replaced:
            signal.signal(number, self._defaults[number])
        # A signal that came after the loop, such as in finalizers, ends the program here.
        if exception is None and self.number is not None:
            self.raise_for(self.number)

    def _note(self, number, frame):
        if self.number is not None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.number = number
        # print is not used, because the signal may have interrupted another print.
        with contextlib.suppress(OSError):
            text = "finishing this iteration; send the signal again to stop immediately"
            start = "\n" if os.isatty(2) else ""  # starts a new line below a progress bar
            os.write(2, f"{start}{signal.Signals(number).name}: {text}\n".encode())

    def raise_for(self, number: int) -> NoReturn:
        """Raises the exception with which a signal ends training after a complete iteration.

        Raises:
            TrainingInterrupted: for Ctrl-C; it is a KeyboardInterrupt and a SystemExit.
            SystemExit: for SIGTERM, with 128 and its number as the exit code.
        """
        if number == signal.SIGINT:
            raise TrainingInterrupted("training was interrupted after a complete iteration")
        raise SystemExit(128 + number)
