"""Extensions that come with mpchain: evaluation, logs, plots, progress, schedules, snapshots."""

from mpchain.training.extensions.dump_graph import DumpGraph, dump_graph, unchain_variables
from mpchain.training.extensions.evaluator import Evaluator
from mpchain.training.extensions.fail_on_non_number import FailOnNonNumber
from mpchain.training.extensions.log_follower import LogFollower
from mpchain.training.extensions.log_report import LogReport
from mpchain.training.extensions.log_writers import JsonLinesReport, TensorBoardReport
from mpchain.training.extensions.micro_average import MicroAverage
from mpchain.training.extensions.parameter_statistics import ParameterStatistics
from mpchain.training.extensions.plot_report import PlotReport
from mpchain.training.extensions.print_report import PrintReport
from mpchain.training.extensions.progress_bar import ProgressBar
from mpchain.training.extensions.schedules import (
    CosineShift,
    ExponentialShift,
    InverseShift,
    LinearShift,
    MultistepShift,
    OneCycleShift,
    PolynomialShift,
    Schedule,
    StepShift,
    WarmupShift,
)
from mpchain.training.extensions.snapshot import snapshot, snapshot_object
from mpchain.training.extensions.snapshot_writers import (
    ProcessQueueWriter,
    ProcessWriter,
    QueueWriter,
    SimpleWriter,
    StandardWriter,
    ThreadQueueWriter,
    ThreadWriter,
    Writer,
)
from mpchain.training.extensions.value_observation import observe_lr, observe_value
from mpchain.training.extensions.variable_statistics_plot import VariableStatisticsPlot

__all__ = [
    "CosineShift",
    "DumpGraph",
    "Evaluator",
    "ExponentialShift",
    "FailOnNonNumber",
    "InverseShift",
    "JsonLinesReport",
    "LinearShift",
    "LogFollower",
    "LogReport",
    "MicroAverage",
    "MultistepShift",
    "OneCycleShift",
    "ParameterStatistics",
    "PlotReport",
    "PolynomialShift",
    "PrintReport",
    "ProcessQueueWriter",
    "ProcessWriter",
    "ProgressBar",
    "QueueWriter",
    "Schedule",
    "SimpleWriter",
    "StandardWriter",
    "StepShift",
    "TensorBoardReport",
    "ThreadQueueWriter",
    "ThreadWriter",
    "VariableStatisticsPlot",
    "WarmupShift",
    "Writer",
    "dump_graph",
    "observe_lr",
    "observe_value",
    "snapshot",
    "snapshot_object",
    "unchain_variables",
]
