"""The base of extensions that draw: figures of matplotlib, written to files.

Not through pyplot, whose backend and open figures belong to the user's program.
"""

import functools
import importlib.util
import os
import warnings
from typing import Any

from mpchain.training.extension import Extension
from mpchain.training.output_files import OutputFiles
from mpchain.training.trainer import Trainer


@functools.cache
def warn_unavailable(extension: str) -> None:
    """Warns, once for each kind of extension, that it draws nothing."""
    warnings.warn(
        f"{extension}: no plots are written, because matplotlib is not installed; "
        "pip install 'mpchain[plot]'",
        stacklevel=4,
    )


class FigureWriter(Extension):
    """Base of extensions that draw; without matplotlib they only warn.

    Args:
        filename: name of the file in the trainer's folder; its ending is the format (PNG, SVG, PDF;
            without one it is PNG).

    Example:
        >>> isinstance(extensions.PlotReport("main/loss"), FigureWriter)
        True
    """

    is_report = True

    def __init__(self, filename: str) -> None:
        self._filename = filename
        self._files = OutputFiles(type(self).__name__, filename)
        if not self.available():
            warn_unavailable(type(self).__name__)

    @staticmethod
    def available() -> bool:
        """Returns whether matplotlib is installed."""
        return importlib.util.find_spec("matplotlib") is not None

    def initialize(self, trainer: Trainer) -> None:
        """Makes sure that no other job writes the file."""
        if self.available():
            self._files.claim(trainer)

    def finalize(self) -> None:
        """Lets other jobs write the file."""
        self._files.release()

    def new_figure(self, figsize: tuple[float, float] | None = None) -> Any:
        """Returns an empty figure that needs no screen; ``figsize`` is in inches."""
        from matplotlib.figure import Figure

        return Figure(figsize=figsize)

    def write(self, figure: Any, folder: str | os.PathLike[str]) -> None:
        """Writes a figure to the file in a folder, as a whole or not at all."""
        image_format = os.path.splitext(self._filename)[1].lstrip(".") or "png"
        with self._files.open(os.path.join(folder, self._filename), "wb") as file:
            figure.savefig(file, format=image_format, bbox_inches="tight")
