"""The extension that saves the hyperparameters of a run with its results."""

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

from mpchain.training.extension import Extension
from mpchain.training.extensions.closing_report import as_dict
from mpchain.training.output_files import OutputFiles
from mpchain.training.trainer import Trainer


class Hyperparameters(Extension):
    """Writes the arguments of a program to a JSON file when training begins.

    Values that JSON lacks are written as their ``str``, but arrays of one element as numbers. The
    extension keeps the file of an earlier run, and refuses other jobs, as :class:`LogReport` does.

    Args:
        arguments: the result of argparse, or a dict.
        filename: name of the file in the trainer's folder.

    Attributes:
        values: the arguments as a dict.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((1, "iteration"))
        >>> trainer.extend(Hyperparameters({"lr": 0.1, "batchsize": 32}))
        >>> trainer.run()
        >>> import pathlib
        >>> print(pathlib.Path("result/hyperparameters.json").read_text())
        {
            "lr": 0.1,
            "batchsize": 32
        }
    """

    is_report = True

    def __init__(
        self,
        arguments: argparse.Namespace | Mapping[str, Any],
        filename: str = "hyperparameters.json",
    ) -> None:
        self.values = as_dict(arguments)
        self._filename = filename
        self._files = OutputFiles(type(self).__name__, filename)

    @property
    def settings(self) -> dict[str, str]:
        """A dict from name to text of the arguments that are not None, for the live page."""
        return {name: str(value) for name, value in self.values.items() if value is not None}

    def trigger(self, trainer: Trainer) -> bool:
        """Returns False: the extension acts only at the start."""
        return False

    def __call__(self, trainer: Trainer) -> None:
        """Does nothing."""

    def initialize(self, trainer: Trainer) -> None:
        """Writes the file of hyperparameters."""
        self._files.claim(trainer)
        with self._files.open(os.path.join(trainer.out, self._filename)) as file:
            json.dump(self.values, file, indent=4, default=_plain)
            file.write("\n")

    def finalize(self) -> None:
        """Allows other jobs to write the file."""
        self._files.release()


def _plain(value):
    """Returns a value as JSON can represent it."""
    return value.item() if getattr(value, "size", None) == 1 else str(value)
