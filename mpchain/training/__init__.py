"""Training loops: the trainer, updaters, triggers and extensions."""

from mpchain.training import extensions, triggers, updaters, util
from mpchain.training.extension import (
    PRIORITY_EDITOR,
    PRIORITY_READER,
    PRIORITY_WRITER,
    Extension,
    make_extension,
)
from mpchain.training.trainer import Trainer
from mpchain.training.triggers import IntervalTrigger, get_trigger
from mpchain.training.updaters import ParallelUpdater, StandardUpdater, Updater

__all__ = [
    "PRIORITY_EDITOR",
    "PRIORITY_READER",
    "PRIORITY_WRITER",
    "Extension",
    "IntervalTrigger",
    "ParallelUpdater",
    "StandardUpdater",
    "Trainer",
    "Updater",
    "extensions",
    "get_trigger",
    "make_extension",
    "triggers",
    "updaters",
    "util",
]
