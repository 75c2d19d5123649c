"""The extension that prints the log as a table."""

from mpchain.training.extensions.awaited_keys import AwaitedKeys
from mpchain.training.extensions.log_follower import LogFollower
from mpchain.training.progress import print_line


class PrintReport(LogFollower):
    """Prints chosen values of a :class:`LogReport` as a table, one line an entry.

    After a resume the table starts with the earlier entries.

    Args:
        entries: names of the values, one column each; what an entry lacks is left blank. Of a name
            that no entry has, a warning tells when training is over.
        log_report: see :class:`LogFollower`.
        out: stream to print to; None means standard output.
    """

    def __init__(self, entries, log_report="LogReport", out=None):
        super().__init__(log_report)
        self._entries = list(entries)
        self._widths = [max(10, len(entry)) for entry in self._entries]
        self._out = out
        self._has_header = False
        self._awaited = AwaitedKeys(type(self).__name__, self._entries)

    def finalize(self):
        """Prints what was logged after the last call."""
        super().finalize()
        self._awaited.warn()

    def _write_new(self):
        if not self._has_header:
            self._has_header = True
            self._print_row(self._entries)
        super()._write_new()

    def write(self, entries):
        """Prints entries, one line each."""
        for entry in entries:
            self._awaited.see(entry)
            self._print_row(_format(entry.get(name)) for name in self._entries)

    def _print_row(self, cells):
        row = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, self._widths, strict=True))
        print_line(row.rstrip(), self._out)


def _format(value):
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:g}"
