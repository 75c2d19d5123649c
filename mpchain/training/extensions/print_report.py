"""The extension that prints the log as a table."""

from mpchain.training.extension import Extension
from mpchain.training.extensions.log_report import LogReport
from mpchain.training.progress import print_line


class PrintReport(Extension):
    """Prints chosen values of a :class:`LogReport` as a table, one line an entry.

    After a resume the table starts with the earlier entries.

    Args:
        entries: names of the values, one column each; what an entry lacks is left blank.
        log_report: name of the log report in the trainer, or a :class:`LogReport` of its own,
            which is then called by this extension.
        out: stream to print to; None means standard output.
    """

    def __init__(self, entries, log_report="LogReport", out=None):
        self._entries = list(entries)
        self._widths = [max(10, len(entry)) for entry in self._entries]
        self._log_report = log_report
        self._out = out
        self._n_printed = None
        self._log = []

    def __call__(self, trainer):
        """Prints the entries that are new since the last call."""
        if isinstance(self._log_report, LogReport):
            self._log_report(trainer)
            self._log = self._log_report.log
        else:
            self._log = trainer.get_extension(self._log_report).log
        self._print_new()

    def finalize(self):
        """Prints what was logged after the last call."""
        self._print_new()

    def _print_new(self):
        if self._n_printed is None:
            self._n_printed = 0
            self._print_row(self._entries)
        for entry in self._log[self._n_printed :]:
            self._print_row(_format(entry.get(name)) for name in self._entries)
        self._n_printed = len(self._log)

    def _print_row(self, cells):
        row = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, self._widths, strict=True))
        print_line(row.rstrip(), self._out)

    def serialize(self, serializer):
        """Saves or restores the log report, if it is this extension's own."""
        if isinstance(self._log_report, LogReport):
            self._log_report.serialize(serializer["_log_report"])


def _format(value):
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:g}"
