"""Signals that end a training loop after a complete iteration."""

import contextlib
import os
import signal
import threading
from types import TracebackType
from typing import NoReturn


class TrainingInterrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C has ended a training loop after a complete iteration.

    If this exception is not caught, the program ends without a traceback, with a shell's code for
    Ctrl-C.

    Example:
        >>> TrainingInterrupted("after iteration 5").code
        130
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 128 + signal.SIGINT


class Interruption:
    """Context manager: records the first Ctrl-C or SIGTERM; a second one raises at once.

    Signals that the program handles itself stay with the program. So do all signals outside the
    main thread, where Python cannot set handlers.

    Attributes:
        number: the signal that was recorded; None if there was none.

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
        # If a signal came after the loop, for example in finalizers, the program ends here.
        if exception is None and self.number is not None:
            self.raise_for(self.number)

    def _note(self, number, frame):
        if self.number is not None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.number = number
        # The text is not printed with print, because the signal may have interrupted another print.
        with contextlib.suppress(OSError):
            text = "finishing this iteration; send the signal again to stop immediately"
            start = "\n" if os.isatty(2) else ""  # a progress bar may be on this line
            os.write(2, f"{start}{signal.Signals(number).name}: {text}\n".encode())

    def raise_for(self, number: int) -> NoReturn:
        """Raises the exception with which a signal ends training after a complete iteration.

        Raises:
            TrainingInterrupted: for Ctrl-C; the exception is a KeyboardInterrupt and a SystemExit.
            SystemExit: for SIGTERM, with the exit code 128 plus the number of the signal.
        """
        if number == signal.SIGINT:
            raise TrainingInterrupted("training was interrupted after a complete iteration")
        raise SystemExit(128 + number)
