"""A function that adds the reports that most programs need."""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from mpchain.training.extensions.closing_report import ClosingReport
from mpchain.training.extensions.hyperparameters import Hyperparameters
from mpchain.training.extensions.log_followers import PrintReport
from mpchain.training.extensions.log_report import LogReport
from mpchain.training.extensions.progress_bar import ProgressBar
from mpchain.training.extensions.snapshot import Snapshot
from mpchain.training.trainer import Trainer
from mpchain.training.triggers.interval import TriggerLike


def standard_reports(
    trainer: Trainer,
    columns: Iterable[str] | None = None,
    *,
    trigger: TriggerLike = (1, "epoch"),
    snapshots: TriggerLike = None,
    arguments: argparse.Namespace | Mapping[str, Any] | None = None,
) -> None:
    """Adds a log, a table, a progress bar and closing lines to a trainer.

    These are :class:`LogReport`, :class:`PrintReport`, :class:`ProgressBar` and
    :class:`ClosingReport`. On several ranks, call the function on all of them: rank 0 prints and
    writes.

    Args:
        trainer: the trainer.
        columns: names of the values in the table; None means all logged values.
        trigger: determines when an entry is logged and a row is printed.
        snapshots: determines when rank 0 saves the trainer, whose state must be the same on all
            ranks, by :class:`snapshot`; the last two snapshots are kept, and Ctrl-C saves one. None
            means never.
        arguments: the program's arguments, which :class:`Hyperparameters` saves; if they have
            ``resume``, Ctrl-C prints the command that continues.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((2, "epoch"))
        >>> extensions.standard_reports(trainer, ["epoch", "iteration"])
        >>> trainer.run()
        epoch       iteration
        1           10
        2           20
        2 epochs (20 iterations) in 0:00:00
        results are in result
    """
    if snapshots is not None:
        snapshot = Snapshot(n_retains=2, on_interrupt=True)
        snapshot.is_report = True
        trainer.extend(snapshot, trigger=snapshots)
    if arguments is not None:
        trainer.extend(Hyperparameters(arguments))
    trainer.extend(LogReport(trigger=trigger))
    trainer.extend(PrintReport(columns))
    trainer.extend(ProgressBar(update_interval=None))
    trainer.extend(ClosingReport(arguments))
