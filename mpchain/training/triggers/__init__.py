"""Triggers: functions of the trainer that decide when to call an extension, or to stop."""

from mpchain.training.triggers.best_value import BestValueTrigger as BestValueTrigger
from mpchain.training.triggers.best_value import MaxValueTrigger as MaxValueTrigger
from mpchain.training.triggers.best_value import MinValueTrigger as MinValueTrigger
from mpchain.training.triggers.early_stopping import EarlyStoppingTrigger as EarlyStoppingTrigger
from mpchain.training.triggers.interval import IntervalTrigger as IntervalTrigger
from mpchain.training.triggers.interval import get_trigger as get_trigger
from mpchain.training.triggers.schedule import ManualScheduleTrigger as ManualScheduleTrigger
from mpchain.training.triggers.schedule import OnceTrigger as OnceTrigger
from mpchain.training.triggers.schedule import TimeTrigger as TimeTrigger
