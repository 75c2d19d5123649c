"""The extension that prints the results of training at its end, and how to continue."""

import argparse
import contextlib
import datetime
import math
import os
import shlex
import sys
import textwrap
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from mpchain.training.extension import Extension
from mpchain.training.extensions.figures import FigureWriter
from mpchain.training.extensions.log_followers import PrintReport
from mpchain.training.extensions.log_report import LogReport
from mpchain.training.progress import print_line, terminal_columns
from mpchain.training.trainer import Trainer
from mpchain.training.triggers import interval

COMMAND_VARIABLE = "MPCHAIN_COMMAND"
"""Environment variable with the command that started mpchain-launch."""


class ClosingReport(Extension):
    """Prints at the end of training the final values, and the folder of the results.

    If ``arguments`` have ``resume`` and there is a snapshot, the first run in a folder also prints
    a line with the next steps. After Ctrl-C or SIGTERM the extension prints the command that
    continues from the latest snapshot, if there is one, or only the path of the snapshot if the
    program has no option to continue. After any other exception it prints nothing.

    Args:
        arguments: the program's arguments, as argparse returns them, or a dict. If they have
            ``resume``, the printed command continues training with ``--resume`` and the path of a
            snapshot, or with ``--resume`` alone if the argument is a bool.
        out: the stream to print to; None means standard output.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((20, "iteration"))
        >>> trainer.extend(ClosingReport())
        >>> trainer.run()
        2 epochs (20 iterations) in 0:00:00
        results are in result
    """

    priority = -200  # with this priority, the extension is finalized after the snapshot
    is_report = True

    def __init__(
        self,
        arguments: argparse.Namespace | Mapping[str, Any] | None = None,
        out: TextIO | None = None,
    ) -> None:
        self._arguments = as_dict(arguments)
        self._out = out
        self._trainer: Any = None
        self._error: BaseException | None = None

    def trigger(self, trainer: Trainer) -> bool:
        """Returns False: the extension acts at the end only."""
        return False

    def __call__(self, trainer: Trainer) -> None:
        """Does nothing."""

    def initialize(self, trainer: Trainer) -> None:
        """Stores the trainer."""
        self._trainer = trainer

    def on_error(self, trainer: Trainer, exc: BaseException, tb: TracebackType | None) -> None:
        """Stores the exception that has ended training."""
        self._error = exc

    def finalize(self) -> None:
        """Prints the results, and the next steps or the command that continues."""
        trainer = self._trainer
        is_interrupted = isinstance(self._error, (KeyboardInterrupt, SystemExit))
        if trainer is None or not (self._error is None or is_interrupted):
            return
        start = "interrupted after " if is_interrupted else ""
        values = _last_values(trainer)
        self._print(start + _progress(trainer) + (f": {values}" if values else ""))
        if trainer.is_test:
            self._print("test run finished; nothing was saved")
            return
        self._print(f"results are in {trainer.out}")
        saver = _latest_saver(trainer)
        if not is_interrupted and _is_first_run(trainer):
            self._print_next_steps(saver)
        if is_interrupted and saver is not None:
            command = self._command(saver)
            if command:
                n_ranks = 1 if COMMAND_VARIABLE in os.environ else _n_ranks(trainer)
                # It is not known which launcher has started these ranks.
                where = f" on {n_ranks} ranks" if n_ranks > 1 else ""
                print_line(f"to continue{where}: {command}", self._out)
            else:
                self._print(f"the latest snapshot is {saver.latest}")

    def _print_next_steps(self, saver):
        if saver is None or "resume" not in self._arguments:
            return
        extensions, out = self._trainer.extensions.values(), self._trainer.out
        names = [e.filename for e in extensions if isinstance(e, FigureWriter) and e.available()]
        steps = [f"see {os.path.join(out, name)}" for name in names]
        path = "" if isinstance(self._arguments["resume"], bool) else f" {saver.latest}"
        steps.append(f"add --resume{path} and more epochs to train longer")
        if "--page" not in os.environ.get(COMMAND_VARIABLE, ""):
            steps.append("mpchain-launch --page to watch a run live")
        self._print(f"next: {', '.join(steps)}; guide: docs/guides/training.md")

    def _print(self, text):
        columns = terminal_columns(self._out)
        options = {"break_long_words": False, "break_on_hyphens": False}
        # In files, lines are not broken, because users search and copy their text.
        width = columns or len(text)
        for line in textwrap.wrap(text, width, subsequent_indent="  ", **options):
            print_line(line, self._out)

    def _command(self, saver):
        """Returns the command that continues; empty if the program has no option for it."""
        words = [*sys.orig_argv]
        words[0] = os.path.basename(words[0])
        if COMMAND_VARIABLE in os.environ:
            words = shlex.split(os.environ[COMMAND_VARIABLE])
        if getattr(saver, "autoload", False):
            return shlex.join(words)
        if "resume" not in self._arguments:
            return ""
        is_flag = isinstance(self._arguments["resume"], bool)
        own = sys.argv[1:]
        if own and words[-len(own) :] == own:
            words[-len(own) :] = _without_option(own, "--resume", 0 if is_flag else 1)
        return shlex.join([*words, "--resume", *([] if is_flag else [saver.latest])])


def as_dict(arguments: argparse.Namespace | Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns arguments of a program as a dict.

    Example:
        >>> as_dict(argparse.Namespace(epoch=5))
        {'epoch': 5}
    """
    if arguments is None:
        return {}
    return dict(arguments if isinstance(arguments, Mapping) else vars(arguments))


def _is_first_run(trainer):
    """Returns whether no earlier run has left results in the folder."""
    names = os.listdir(trainer.out) if os.path.isdir(trainer.out) else []
    return not trainer.is_resumed and not any(".old" in name for name in names)


def _progress(trainer):
    updater = trainer.updater
    texts = [_count(updater.iteration, "iteration")]
    with contextlib.suppress(AttributeError):  # some updaters have no epochs
        length, unit = interval.training_length(trainer.stop_trigger) or (math.inf, "epoch")
        # The last batch may contain samples of the next epoch.
        n_epochs = min(updater.epoch_detail, length if unit == "epoch" else math.inf)
        texts = [_count(round(n_epochs, 1), "epoch"), f"({texts[0]})"]
    seconds = datetime.timedelta(seconds=round(trainer.elapsed_time))
    return f"{' '.join(texts)} in {seconds}"


def _count(n, unit):
    return f"{n:g} {unit}{'' if n == 1 else 's'}" if n < 1e6 else f"{round(n)} {unit}s"


def _last_values(trainer):
    """Returns a text of the values in the last row of the table, or of the log without a table."""
    extensions = trainer.extensions.values()
    log = next((e.log for e in extensions if isinstance(e, LogReport) and e.log), None)
    if log is None:
        return ""
    entry = {**log[-1]}
    for name in ("epoch", "iteration", "elapsed_time"):
        entry.pop(name, None)
    table = next((e for e in extensions if isinstance(e, PrintReport)), None)
    names = [name for name in (table.entries if table else entry) if name in entry]
    numbers = [f"{name} {entry[name]:g}" for name in names if isinstance(entry[name], (int, float))]
    return ", ".join(numbers)


def _latest_saver(trainer):
    """Returns the extension that has saved the trainer; None if no extension has."""
    for extension in trainer.extensions.values():
        target = getattr(extension, "target", None)
        if getattr(extension, "latest", None) is not None and target in (None, trainer):
            return extension
    return None


def _n_ranks(trainer):
    optimizers = trainer.updater.get_all_optimizers().values()
    comms = [optimizer.communicator for optimizer in optimizers]
    return max((comm.size for comm in comms if comm is not None), default=1)


def _without_option(words, option, n_values):
    """Returns arguments of a program without one option and its values."""
    kept, n_skipped = [], 0
    for word in words:
        if n_skipped:
            n_skipped -= 1
        elif word == option:
            n_skipped = n_values
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept
