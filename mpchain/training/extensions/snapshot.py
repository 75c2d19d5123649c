"""Extensions that save the state of training."""

import contextlib
import json
import os
import re
import warnings

from mpchain.serializer import DamagedFileError
from mpchain.serializers import load_hdf5, load_npz, load_safetensors, open_atomic, save_npz
from mpchain.training.extension import Extension
from mpchain.training.extensions.snapshot_writers import SimpleWriter
from mpchain.training.output_files import OutputFiles, find_files, progress_in
from mpchain.training.progress import print_line
from mpchain.training.states import serialize_optional


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

    While training runs, another job that would write files of the same name is refused, and what a
    killed process has left of a snapshot is deleted. A run deletes its own snapshots only (see
    ``n_retains``), where it goes on from a snapshot also those of the run that wrote that. A file
    of an earlier run that has the name of a new one is kept: ``snapshot_iter_9`` is renamed to
    ``snapshot_iter_9.old1``.

    Args:
        savefun: function of ``(path, target)`` that writes the file; None means ``save_npz``.
        filename: name of the file in the trainer's folder: a text that is formatted with the
            trainer, or a function of the trainer that returns the name.
        target: object to save; None means the trainer.
        condition: function of no argument that returns whether to save now; None means always.
        writer: :class:`Writer` that writes the file, in place of ``savefun``.
        snapshot_on_error: whether to save also when an exception ends training, unless the
            iteration was saved already.
        n_retains: number of this run's snapshots to keep: those written earlier are deleted after
            a new one was written; 0 or less keeps all. Which run has written which snapshot is
            kept in a hidden file beside them.
        autoload: whether to load the latest snapshot in the trainer's folder, if there is one,
            before training starts: that of the greatest iteration or epoch, if the names tell it,
            else the last by time. One that is damaged is passed over, with a warning; if all are,
            training does not start.
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
        self._folder = self._files = None
        self._latest = self._loaded = None
        self._run = os.urandom(8).hex()
        self._announced = set()  # names of files that may not be written yet

    def initialize(self, trainer):
        """Makes sure that no other job writes the files; loads the latest, if asked to."""
        self._folder = trainer.out
        if not callable(self._filename):
            self._files = OutputFiles("snapshot", self._filename)
            self._files.claim(trainer)
        if self._autoload:
            self._load_latest(self._get_target(trainer))

    def _load_latest(self, target):
        files = self._find_files()
        for path in reversed(files):
            try:
                load(path, target)
            except DamagedFileError as error:
                warnings.warn(f"snapshot: passed over: {error}", RuntimeWarning, stacklevel=2)
                continue
            print_line(f"training goes on from {path}")
            self._loaded = path
            return
        if files:
            raise DamagedFileError(
                f"snapshot: autoload has found {len(files)} snapshots in {self._folder}, all of "
                "them damaged; to begin anew, use another folder or move them away"
            )

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
        try:
            self._writer.finalize()
            if self._folder is not None:
                self._remove_old_files()
        finally:
            if self._files is not None:
                self._files.release()
                self._files = None

    def _save(self, trainer):
        name = self._format_name(trainer)
        if self._files is not None and self._loaded is None:
            self._files.keep_earlier(os.path.join(trainer.out, name))
        self._announce(name)
        self._writer(name, trainer.out, self._get_target(trainer))
        self._latest = name
        self._remove_old_files()

    # Which run has written what: a list of [name, run], the last written at the end, in a file. It
    # is there before the snapshot, and may have names that are not.

    def _announce(self, name):
        if self._deletes():
            self._announced.add(name)
            others = [entry for entry in self._read_index() if entry[0] != name]
            entries = [*filter(self._is_there, others), [name, self._run]]
            with open_atomic(self._index_path(), "w") as file:
                json.dump(entries, file)

    def _remove_old_files(self):
        if self._deletes():
            own = [name for name, run in self._read_index() if run == self._run]
            written = [name for name in own if os.path.exists(self._path_of(name))]
            for name in written[: -self._n_retains]:
                with contextlib.suppress(FileNotFoundError):  # another rank was faster
                    os.remove(self._path_of(name))
                self._announced.discard(name)

    def _deletes(self):
        return self._n_retains > 0 and self._files is not None

    def _read_index(self):
        try:
            with open(self._index_path(), encoding="utf-8") as file:
                return [[name, run] for name, run in json.load(file)]
        except (FileNotFoundError, ValueError, TypeError):  # then nothing is known, or deleted
            return []

    def _is_there(self, entry):
        return entry[0] in self._announced or os.path.exists(self._path_of(entry[0]))

    def _path_of(self, name):
        return os.path.join(self._folder, name)

    def _index_path(self):
        return self._path_of(f".{self._filename.replace(os.sep, '_')}.index")

    def serialize(self, serializer):
        """Saves or restores which run this is, by which it knows its snapshots."""
        self._run = serialize_optional(serializer, "run", self._run)

    def _get_target(self, trainer):
        return trainer if self._target is None else self._target

    def _format_name(self, trainer):
        if callable(self._filename):
            return self._filename(trainer)
        return self._filename.format(trainer)

    def _find_files(self):
        """Returns the paths of all snapshots in the trainer's folder, the latest last."""

        def key(path):
            progress = progress_in(path, self._filename)
            return progress, os.stat(path).st_mtime_ns, _natural(path)

        return sorted(find_files(self._folder, self._filename), key=key)


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


def _natural(path):
    """Sorting key by which ``iter_900`` comes before ``iter_1000``."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]
