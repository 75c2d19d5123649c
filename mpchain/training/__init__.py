"""Training loops: the trainer, updaters, triggers and extensions."""

from mpchain.training import extensions as extensions
from mpchain.training import triggers as triggers
from mpchain.training import updaters as updaters
from mpchain.training import util as util
from mpchain.training.extension import PRIORITY_EDITOR as PRIORITY_EDITOR
from mpchain.training.extension import PRIORITY_READER as PRIORITY_READER
from mpchain.training.extension import PRIORITY_WRITER as PRIORITY_WRITER
from mpchain.training.extension import Extension as Extension
from mpchain.training.extension import make_extension as make_extension
from mpchain.training.learning_rate_finder import RangeTest as RangeTest
from mpchain.training.learning_rate_finder import find_learning_rate as find_learning_rate
from mpchain.training.trainer import Trainer as Trainer
from mpchain.training.triggers import IntervalTrigger as IntervalTrigger
from mpchain.training.triggers import get_trigger as get_trigger
from mpchain.training.updaters import ParallelUpdater as ParallelUpdater
from mpchain.training.updaters import StandardUpdater as StandardUpdater
from mpchain.training.updaters import Updater as Updater
