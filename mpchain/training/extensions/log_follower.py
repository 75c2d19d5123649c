"""The base of extensions that pass on what a log report logs."""

from mpchain.training.extension import Extension
from mpchain.training.extensions.log_report import LogReport


class LogFollower(Extension):
    """Passes the entries of a :class:`LogReport` on, each of them once.

    Subclasses define :meth:`write`.

    Args:
        log_report: name of the log report in the trainer, or a :class:`LogReport` of its own,
            which is then called by this extension.
    """

    def __init__(self, log_report="LogReport"):
        self._log_report = log_report
        self._log = []
        self._n_written = 0

    def initialize(self, trainer):
        """Initializes the log report, if it is this extension's own."""
        if isinstance(self._log_report, LogReport):
            self._log_report.initialize(trainer)

    def __call__(self, trainer):
        """Passes on the entries that are new since the last call."""
        if isinstance(self._log_report, LogReport):
            self._log_report(trainer)
            self._log = self._log_report.log
        else:
            self._log = trainer.get_extension(self._log_report).log
        self._write_new()

    def finalize(self):
        """Passes on what was logged after the last call."""
        self._write_new()
        if isinstance(self._log_report, LogReport):
            self._log_report.finalize()

    def _write_new(self):
        entries = self._log[self._n_written :]
        if entries:
            self.write(entries)
            self._n_written = len(self._log)

    def write(self, entries):
        """Passes on entries.

        Args:
            entries (list): dicts, not written before.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement write")

    def serialize(self, serializer):
        """Saves or restores the log report, if it is this extension's own."""
        if isinstance(self._log_report, LogReport):
            self._log_report.serialize(serializer["_log_report"])
