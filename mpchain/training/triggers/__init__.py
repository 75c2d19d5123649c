"""Triggers: functions of the trainer that say when to call an extension, or to stop."""

from mpchain.training.triggers.best_value import (
    BestValueTrigger,
    MaxValueTrigger,
    MinValueTrigger,
)
from mpchain.training.triggers.early_stopping import EarlyStoppingTrigger
from mpchain.training.triggers.interval import IntervalTrigger, get_trigger
from mpchain.training.triggers.schedule import ManualScheduleTrigger, OnceTrigger, TimeTrigger

__all__ = [
    "BestValueTrigger",
    "EarlyStoppingTrigger",
    "IntervalTrigger",
    "ManualScheduleTrigger",
    "MaxValueTrigger",
    "MinValueTrigger",
    "OnceTrigger",
    "TimeTrigger",
    "get_trigger",
]
