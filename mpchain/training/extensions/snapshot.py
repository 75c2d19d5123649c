"""Extensions that save the state of training."""

import os
import re
import string

from mpchain.serializers import load_hdf5, load_npz, load_safetensors, save_npz
from mpchain.training.extension import Extension
from mpchain.training.extensions.snapshot_writers import SimpleWriter
from mpchain.training.progress import print_line

# What files are called while they are written, before their names; a name can have it twice, since
# the writer and the function that it calls both make sure that no file appears before its time.
_TEMPORARY = r"(?:\.[0-9a-f]{8}\.tmp\.)+"


def snapshot(
    savefun=None,
    filename="snapshot_iter_{.updater.iteration}",
    *,
    target=None,
    condition=None,
    writer=None,
    snapshot_on_error=False,
    n_retains=-1,
    autoload=False,
    on_interrupt=False,
):
    """Returns an extension that saves the trainer once an epoch, after all other extensions.

    Training goes on from the file after ``load_npz(file, trainer)``, or by itself with
    ``autoload``. A file appears under its name only when it is complete.

    Args:
        savefun: function of ``(path, target)`` that writes the file; None means ``save_npz``.
        filename: name of the file in the trainer's folder: a text that is formatted with the
            trainer, or a function of the trainer that returns the name.
        target: object to save; None means the trainer.
        condition: function of no argument that returns whether to save now; None means always.
        writer: :class:`Writer` that writes the file, in place of ``savefun``.
        snapshot_on_error: whether to save also when an exception ends training, unless the
            iteration was saved already.
        n_retains: number of snapshots to keep: older ones are deleted after a new one was
            written; 0 or less keeps all.
        autoload: whether to load the latest snapshot in the trainer's folder, if there is one,
            before training starts. What a killed process has left of a snapshot that it was
            writing is deleted then.
        on_interrupt: whether to save also when Ctrl-C or SIGTERM ends training, which happens
            after a complete iteration, unless the iteration was saved already.

    Raises:
        TypeError: ``savefun`` and ``writer`` are both given, or ``filename`` is a function, which
            does not tell which files are snapshots, together with ``n_retains`` or ``autoload``.
    """
    return Snapshot(
        target,
        filename,
        savefun,
        condition,
        writer,
        snapshot_on_error,
        n_retains,
        autoload,
        on_interrupt,
    )


def snapshot_object(
    target,
    filename,
    savefun=None,
    *,
    condition=None,
    writer=None,
    snapshot_on_error=False,
    n_retains=-1,
    autoload=False,
    on_interrupt=False,
):
    """Returns an extension that saves one object, such as a model, once an epoch.

    Args:
        target: object to save, which has ``serialize``.
        filename: see :func:`snapshot`, as for all other arguments.

    Example:
        >>> from mpchain import links
        >>> model = links.Linear(3, 2)
        >>> extension = snapshot_object(model, "model_epoch_{.updater.epoch}.npz")
    """
    return Snapshot(
        target,
        filename,
        savefun,
        condition,
        writer,
        snapshot_on_error,
        n_retains,
        autoload,
        on_interrupt,
    )


class Snapshot(Extension):
    """The extension that :func:`snapshot` and :func:`snapshot_object` return."""

    trigger = (1, "epoch")
    priority = -100
    default_name = "_Snapshot"  # so in Chainer's snapshots, which can be resumed thereby

    def __init__(
        self,
        target,
        filename,
        savefun,
        condition,
        writer,
        snapshot_on_error,
        n_retains,
        autoload,
        on_interrupt,
    ):
        if savefun is not None and writer is not None:
            raise TypeError("snapshot: pass savefun or writer, not both")
        if callable(filename) and (n_retains > 0 or autoload):
            raise TypeError("snapshot: n_retains and autoload need a filename that is a text")
        self._target = target
        self._filename = filename
        self._condition = condition
        self._writer = writer or SimpleWriter(savefun or save_npz)
        self._snapshot_on_error = snapshot_on_error
        self._n_retains = n_retains
        self._autoload = autoload
        self._on_interrupt = on_interrupt
        self._folder = None
        self._latest = None

    def initialize(self, trainer):
        """Loads the latest snapshot, if asked to."""
        self._folder = trainer.out
        if self._autoload:
            for path in self._find_files(prefix=_TEMPORARY):
                os.remove(path)
            files = self._find_files()
            if files:
                load(files[-1], self._get_target(trainer))
                print_line(f"training goes on from {files[-1]}")

    def __call__(self, trainer):
        """Saves the target, if the condition holds."""
        if self._condition is None or self._condition():
            self._save(trainer)

    def on_error(self, trainer, exc, tb):
        """Saves the target, if asked to and this iteration was not saved before."""
        is_wanted = self._snapshot_on_error or (self._on_interrupt and trainer.is_interrupted)
        # The file of this iteration is better than what a half-done next iteration has left.
        if is_wanted and self._format_name(trainer) != self._latest:
            self._save(trainer)

    def finalize(self):
        """Waits until everything is written."""
        self._writer.finalize()
        if self._folder is not None:
            self._remove_old_files()

    def _save(self, trainer):
        name = self._format_name(trainer)
        self._writer(name, trainer.out, self._get_target(trainer))
        self._latest = name
        self._remove_old_files()

    def _remove_old_files(self):
        if self._n_retains > 0:
            for path in self._find_files()[: -self._n_retains]:
                os.remove(path)

    def _get_target(self, trainer):
        return trainer if self._target is None else self._target

    def _format_name(self, trainer):
        if callable(self._filename):
            return self._filename(trainer)
        return self._filename.format(trainer)

    def _find_files(self, prefix=""):
        """Returns the paths of all snapshots in the trainer's folder, the latest last."""
        pattern = re.compile(prefix + _pattern_of(self._filename))
        paths = [entry.path for entry in os.scandir(self._folder) if pattern.fullmatch(entry.name)]
        return sorted(paths, key=lambda path: (os.stat(path).st_mtime_ns, _natural(path)))


def load(path, target):
    """Loads a file of any format that mpchain writes, told by its first bytes."""
    with open(path, "rb") as file:
        start = file.read(520)
    if b"\x89HDF\r\n\x1a\n" in (start[:8], start[512:]):
        load_hdf5(path, target)
    elif start[8:9] == b"{":  # after the length of the header
        load_safetensors(path, target)
    else:
        load_npz(path, target)


def _pattern_of(filename):
    """Returns the regular expression for the names that a format string can produce."""
    parts = []
    for literal, field, _, _ in string.Formatter().parse(filename):
        parts.append(re.escape(literal))
        if field is not None:
            # No free text: a temporary or derived file beside a snapshot must not match.
            parts.append(r"[-+\w]+(?:\.\d+)?")
    return "".join(parts)


def _natural(path):
    """Sorting key by which ``iter_900`` comes before ``iter_1000``."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]
