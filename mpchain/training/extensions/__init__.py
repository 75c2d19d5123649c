"""Extensions that come with mpchain: evaluation, logs, plots, progress, schedules, snapshots."""

from mpchain.training.extensions.dump_graph import DumpGraph as DumpGraph
from mpchain.training.extensions.dump_graph import dump_graph as dump_graph
from mpchain.training.extensions.dump_graph import unchain_variables as unchain_variables
from mpchain.training.extensions.evaluator import Evaluator as Evaluator
from mpchain.training.extensions.fail_on_non_number import FailOnNonNumber as FailOnNonNumber
from mpchain.training.extensions.log_follower import LogFollower as LogFollower
from mpchain.training.extensions.log_report import LogReport as LogReport
from mpchain.training.extensions.log_writers import JsonLinesReport as JsonLinesReport
from mpchain.training.extensions.log_writers import TensorBoardReport as TensorBoardReport
from mpchain.training.extensions.micro_average import MicroAverage as MicroAverage
from mpchain.training.extensions.parameter_statistics import (
    ParameterStatistics as ParameterStatistics,
)
from mpchain.training.extensions.plot_report import PlotReport as PlotReport
from mpchain.training.extensions.print_report import PrintReport as PrintReport
from mpchain.training.extensions.progress_bar import ProgressBar as ProgressBar
from mpchain.training.extensions.schedules import CosineShift as CosineShift
from mpchain.training.extensions.schedules import ExponentialShift as ExponentialShift
from mpchain.training.extensions.schedules import InverseShift as InverseShift
from mpchain.training.extensions.schedules import LinearShift as LinearShift
from mpchain.training.extensions.schedules import MultistepShift as MultistepShift
from mpchain.training.extensions.schedules import OneCycleShift as OneCycleShift
from mpchain.training.extensions.schedules import PolynomialShift as PolynomialShift
from mpchain.training.extensions.schedules import Schedule as Schedule
from mpchain.training.extensions.schedules import StepShift as StepShift
from mpchain.training.extensions.schedules import WarmupShift as WarmupShift
from mpchain.training.extensions.snapshot import snapshot as snapshot
from mpchain.training.extensions.snapshot import snapshot_object as snapshot_object
from mpchain.training.extensions.snapshot_writers import ProcessQueueWriter as ProcessQueueWriter
from mpchain.training.extensions.snapshot_writers import ProcessWriter as ProcessWriter
from mpchain.training.extensions.snapshot_writers import QueueWriter as QueueWriter
from mpchain.training.extensions.snapshot_writers import SimpleWriter as SimpleWriter
from mpchain.training.extensions.snapshot_writers import StandardWriter as StandardWriter
from mpchain.training.extensions.snapshot_writers import ThreadQueueWriter as ThreadQueueWriter
from mpchain.training.extensions.snapshot_writers import ThreadWriter as ThreadWriter
from mpchain.training.extensions.snapshot_writers import Writer as Writer
from mpchain.training.extensions.value_observation import observe_lr as observe_lr
from mpchain.training.extensions.value_observation import observe_value as observe_value
from mpchain.training.extensions.variable_statistics_plot import (
    VariableStatisticsPlot as VariableStatisticsPlot,
)
