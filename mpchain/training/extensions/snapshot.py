"""The extension that saves the state of training."""

import contextlib
import dataclasses
import json
import os
import re
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mpchain.serializer import AbstractSerializer, DamagedFileError
from mpchain.serializers import load_hdf5, load_npz, load_safetensors, open_atomic, save_npz
from mpchain.training.extension import Extension
from mpchain.training.extensions.snapshot_writers import SimpleWriter, Writer
from mpchain.training.output_files import OutputFiles, find_files, hidden_name, progress_in
from mpchain.training.progress import print_line
from mpchain.training.states import serialize_optional

if TYPE_CHECKING:
    from mpchain.training.trainer import Trainer


@dataclasses.dataclass(eq=False, repr=False)
class Snapshot(Extension):
    """Saves the trainer once an epoch, after the other extensions (with the priority -100).

    ``snapshot`` is another name of this class. Training resumes from the file by ``load_npz(file,
    trainer)``, or by itself with ``autoload``. A file appears under its name only when it is
    complete.

    If ``filename`` is a string, another job that would write files of the same name while training
    runs is refused, and incomplete files that a killed process has left are deleted. A run deletes
    only its own snapshots (see ``n_retains``) and, if it resumed from a snapshot, the snapshots of
    the run that wrote that one. If a new snapshot has the name of a file of an earlier run, that
    file is kept: ``snapshot_iter_9`` is renamed to ``snapshot_iter_9.old1``.

    Args:
        savefun: function of ``(path, target)`` that writes the file; None means ``save_npz``.
        filename: name of the file in the trainer's folder: a string that is formatted with the
            trainer, or a function of the trainer that returns the name.
        target: object to save; None means the trainer.
        condition: function of no argument that returns whether to save now; None means always.
        writer: :class:`Writer` that writes the file, instead of ``savefun``.
        snapshot_on_error: whether to save also when an exception ends training, unless the
            iteration was saved already.
        n_retains: number of snapshots of this run to keep: older ones are deleted after a new
            snapshot was written; 0 or less keeps all. A hidden file beside the snapshots records
            the run of each.
        autoload: whether to load the latest snapshot in the trainer's folder, if there is one,
            before training starts. The latest is the snapshot with the greatest iteration or epoch,
            if the names contain it, and otherwise the newest file. A damaged snapshot is skipped,
            with a warning; if all are damaged, training does not start.
        on_interrupt: whether to save also when Ctrl-C or SIGTERM ends training, which happens
            after a complete iteration, unless the iteration was saved already.

    Raises:
        TypeError: both ``savefun`` and ``writer`` are passed; or ``filename`` is a function, from
            which the names of snapshots are not known, together with ``n_retains`` or ``autoload``.

    Example:
        >>> extension = extensions.snapshot(n_retains=2, autoload=True)
        >>> extension.trigger
        (1, 'epoch')
    """

    savefun: Callable[..., Any] | None = None
    filename: str | Callable[["Trainer"], str] = "snapshot_iter_{.updater.iteration}"
    _: dataclasses.KW_ONLY
    target: Any = None
    condition: Callable[[], bool] | None = None
    writer: Writer | None = None
    snapshot_on_error: bool = False
    n_retains: int = -1
    autoload: bool = False
    on_interrupt: bool = False

    trigger = (1, "epoch")
    priority = -100
    default_name = "_Snapshot"  # Chainer's snapshots, which can be resumed, use it

    def __post_init__(self):
        if self.savefun is not None and self.writer is not None:
            raise TypeError("snapshot: pass savefun or writer, not both")
        if callable(self.filename) and (self.n_retains > 0 or self.autoload):
            raise TypeError("snapshot: filename must be a string with n_retains or autoload")
        self._writer = self.writer or SimpleWriter(self.savefun or save_npz)
        self._folder: str | None = None
        self._files: OutputFiles | None = None
        self._latest = self._loaded = None
        self._run = os.urandom(8).hex()
        self._announced = set()  # the names of files that may not have been written yet

    def initialize(self, trainer: "Trainer") -> None:
        """Refuses to share the files with another job; loads the latest file, if requested."""
        self._folder = trainer.out
        if not callable(self.filename):
            self._files = OutputFiles("snapshot", self.filename)
            self._files.claim(trainer)
        if self.autoload:
            self._load_latest(self._get_target(trainer))

    def _load_latest(self, target):
        files = self._find_files()
        for path in reversed(files):
            try:
                load(path, target)
            except DamagedFileError as error:
                warnings.warn(f"snapshot: skipping {error}", RuntimeWarning, stacklevel=2)
                continue
            print_line(f"resuming from {path}")
            self._loaded = path
            return
        if files:
            raise DamagedFileError(
                f"snapshot: all {len(files)} snapshots in {self._folder} are damaged; to train "
                "from the start, use another folder or move them away"
            )

    def __call__(self, trainer: "Trainer") -> None:
        """Saves the target, unless there is a ``condition`` that returns False."""
        if self.condition is None or self.condition():
            self._save(trainer)

    def on_error(self, trainer: "Trainer", exc: BaseException, tb: TracebackType | None) -> None:
        """Saves the target, if requested and this iteration was not saved before."""
        is_wanted = self.snapshot_on_error or (self.on_interrupt and trainer.is_interrupted)
        # The file of the last complete iteration is better than the state that an unfinished
        # iteration has left.
        if is_wanted and self._format_name(trainer) != self._latest:
            self._save(trainer)

    def finalize(self) -> None:
        """Waits until all snapshots are written."""
        try:
            self._writer.finalize()
            if self._folder is not None:
                self._remove_old_files()
        finally:
            if self._files is not None:
                self._files.release()
                self._files = None

    @property
    def latest(self) -> str | None:
        """Path of the latest file that was written or loaded."""
        return self._path_of(self._latest) if self._latest else self._loaded

    def _save(self, trainer):
        name = self._format_name(trainer)
        if self._files is not None and self._loaded is None:
            self._files.keep_earlier(os.path.join(trainer.out, name))
        self._announce(name)
        self._writer(name, trainer.out, self._get_target(trainer))
        self._latest = name
        self._remove_old_files()

    # The index is a file with a list of pairs [name, run], in the order of writing. It is written
    # before the snapshot, and may name snapshots that do not exist.

    def _announce(self, name):
        if self._deletes():
            self._announced.add(name)
            others = [entry for entry in self._read_index() if entry[0] != name]
            entries = [*filter(self._is_there, others), [name, self._run]]
            with open_atomic(self._index_path(), "w") as file:
                json.dump(entries, file)
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._old_index_path())

    def _remove_old_files(self):
        if self._deletes():
            own = [name for name, run in self._read_index() if run == self._run]
            written = [name for name in own if os.path.exists(self._path_of(name))]
            for name in written[: -self.n_retains]:
                with contextlib.suppress(FileNotFoundError):  # another rank deleted it first
                    os.remove(self._path_of(name))
                self._announced.discard(name)

    def _deletes(self):
        return self.n_retains > 0 and self._files is not None

    def _read_index(self):
        for path in (self._index_path(), self._old_index_path()):
            try:
                with open(path, encoding="utf-8") as file:
                    return [[name, run] for name, run in json.load(file)]
            except FileNotFoundError:
                continue
            except (ValueError, TypeError):
                break
        return []  # without an index, no snapshot is deleted

    def _is_there(self, entry):
        return entry[0] in self._announced or os.path.exists(self._path_of(entry[0]))

    def _path_of(self, name):
        assert self._folder is not None  # `initialize` has set the folder
        return os.path.join(self._folder, name)

    def _index_path(self):
        return self._path_of(hidden_name(self.filename, "index"))

    def _old_index_path(self):
        """Returns the path of the index that versions up to November 2026 wrote."""
        assert isinstance(self.filename, str)
        return self._path_of(f".{self.filename.replace(os.sep, '_')}.index")

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the id of the run, which identifies its snapshots."""
        self._run = serialize_optional(serializer, "run", self._run)

    def _get_target(self, trainer):
        return trainer if self.target is None else self.target

    def _format_name(self, trainer):
        name = self.filename
        return name(trainer) if callable(name) else name.format(trainer)

    def _find_files(self):
        """Returns the paths of all snapshots in the trainer's folder, the latest last."""

        folder, template = self._folder, self.filename
        assert folder is not None and isinstance(template, str)

        def key(path):
            return progress_in(path, template), os.stat(path).st_mtime_ns, _natural(path)

        return sorted(find_files(folder, template), key=key)


snapshot = Snapshot


def snapshot_object(
    target: object, filename: str | Callable, savefun: Callable | None = None, **options: Any
) -> Snapshot:
    """Returns an extension that saves one object, such as a model, once an epoch.

    Args:
        target: object to save, which has ``serialize``.
        filename, savefun, options: see :func:`snapshot`.

    Example:
        >>> model = L.Linear(3, 2)
        >>> extension = extensions.snapshot_object(model, "model_epoch_{.updater.epoch}.npz")
    """
    return Snapshot(savefun, filename, target=target, **options)


def load(path: str | os.PathLike[str], target: object) -> None:
    """Loads a file of any format that mpchain writes; the first bytes of the file identify the
    format."""
    with open(path, "rb") as file:
        start = file.read(520)
    if b"\x89HDF\r\n\x1a\n" in (start[:8], start[512:]):
        load_hdf5(path, target)
    elif start[8:9] == b"{":  # the length of the header comes before it
        load_safetensors(path, target)
    else:
        load_npz(path, target)


def _natural(path):
    """Returns a sorting key that puts ``iter_900`` before ``iter_1000``."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]
