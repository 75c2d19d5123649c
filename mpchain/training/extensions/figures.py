"""What the extensions that draw have in common: figures of matplotlib, written to files.

Not through pyplot, whose backend and open figures belong to the user's program.
"""

import functools
import importlib.util
import os
import warnings

from mpchain.serializers.files import open_atomic


def is_available() -> bool:
    """Returns whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


@functools.cache
def warn_unavailable(extension):
    """Warns, once for each kind of extension, that it draws nothing."""
    warnings.warn(
        f"{extension}: no plots are written, because matplotlib is not installed; "
        "pip install 'mpchain[plot]'",
        stacklevel=3,
    )


def new_figure(figsize=None):
    """Returns an empty figure that is drawn without a screen.

    Args:
        figsize: (width, height) in inches; None means matplotlib's default.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize)
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure, path):
    """Writes a figure to a file, as a whole or not at all.

    Args:
        figure: the figure.
        path: the file, whose ending says the format (PNG, SVG, PDF; without one it is PNG).
    """
    image_format = os.path.splitext(path)[1].lstrip(".") or "png"
    with open_atomic(path, "wb") as file:
        figure.savefig(file, format=image_format, bbox_inches="tight")
