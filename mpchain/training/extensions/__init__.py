"""Extensions that come with mpchain: evaluation, logs, plots, progress, snapshots."""

from mpchain.training.extensions.evaluator import Evaluator
from mpchain.training.extensions.fail_on_non_number import FailOnNonNumber
from mpchain.training.extensions.log_report import LogReport
from mpchain.training.extensions.plot_report import PlotReport
from mpchain.training.extensions.print_report import PrintReport
from mpchain.training.extensions.progress_bar import ProgressBar
from mpchain.training.extensions.snapshot import snapshot, snapshot_object
from mpchain.training.extensions.snapshot_writers import SimpleWriter, Writer
from mpchain.training.extensions.value_observation import observe_lr, observe_value

__all__ = [
    "Evaluator",
    "FailOnNonNumber",
    "LogReport",
    "PlotReport",
    "PrintReport",
    "ProgressBar",
    "SimpleWriter",
    "Writer",
    "observe_lr",
    "observe_value",
    "snapshot",
    "snapshot_object",
]
