"""The base of extensions that draw figures with matplotlib and write them to files.

They do not use pyplot, whose backend and open figures belong to the user's program.
"""

import functools
import importlib.util
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

from mpchain.training.extension import Extension
from mpchain.training.output_files import OutputFiles
from mpchain.training.trainer import Trainer


@functools.cache
def warn_unavailable(extension: str) -> None:
    """Warns, once for each kind of extension, that the extension draws nothing."""
    warnings.warn(
        f"{extension}: no plots are written, because matplotlib is not installed; "
        "pip install 'mpchain[plot]'",
        stacklevel=4,
    )


_SHARE = 0.01
"""The greatest share of the training time that figures may take before training ends."""

_FIRST = 0.1
"""Seconds that the first drawing is expected to take."""


class FigureWriter(Extension):
    """Base of extensions that draw; without matplotlib they only warn.

    Args:
        filename: name of the file in the trainer's folder; its ending is the format (PNG, SVG,
            PDF). A name without an ending means PNG.

    Attributes:
        filename: the argument of the same name.

    Example:
        >>> isinstance(extensions.PlotReport("main/loss"), FigureWriter)
        True
    """

    is_report = True

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self._files = OutputFiles(type(self).__name__, filename)
        # These are the seconds that all drawings took, and that the next one is expected to take.
        self._drawn, self._cost = 0.0, _FIRST
        self._begun = time.monotonic()
        self._waiting: Callable[[], None] | None = None
        if not self.available():
            warn_unavailable(type(self).__name__)

    @staticmethod
    def available() -> bool:
        """Returns whether matplotlib is installed."""
        return importlib.util.find_spec("matplotlib") is not None

    def initialize(self, trainer: Trainer) -> None:
        """Makes sure that no other job writes the file."""
        self._begun = time.monotonic()
        if self.available():
            self._files.claim(trainer)

    def finalize(self) -> None:
        """Draws the values that were skipped to save time; allows other jobs to write the file."""
        if self._waiting is not None:
            self._draw_now(self._waiting)
        self._files.release()

    def draw(self, function: Callable[[], None]) -> None:
        """Calls a function that draws and writes the figure, or keeps it for later.

        Drawings take at most a hundredth of the time that has passed in training. The last figure
        is drawn when training ends.
        """
        passed = time.monotonic() - self._begun
        self._waiting = function
        if self._drawn + self._cost <= _SHARE * passed:
            self._draw_now(function)

    def _draw_now(self, function):
        self._waiting, begun = None, time.monotonic()
        function()
        self._cost = time.monotonic() - begun
        self._drawn += self._cost

    def new_figure(self, figsize: tuple[float, float] | None = None) -> Any:
        """Returns an empty figure that needs no screen; ``figsize`` is in inches."""
        from matplotlib.figure import Figure

        return Figure(figsize=figsize)

    def write(self, figure: Any, folder: str | os.PathLike[str]) -> None:
        """Writes a figure to the file in a folder atomically."""
        image_format = os.path.splitext(self.filename)[1].lstrip(".") or "png"
        with self._files.open(os.path.join(folder, self.filename), "wb") as file:
            figure.savefig(file, format=image_format, bbox_inches="tight")
