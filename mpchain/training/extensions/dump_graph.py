"""The extensions that deal with the graphs of reported variables."""

import os
import shutil
import subprocess
import warnings

from mpchain.computational_graph import build_computational_graph
from mpchain.configuration import using_config
from mpchain.serializers.files import open_atomic, replacing
from mpchain.training.extension import Extension
from mpchain.training.states import serialize_optional
from mpchain.variable import Variable

MOST_SECONDS = 60
"""Time that Graphviz has to draw a graph."""


class DumpGraph(Extension):
    """Writes the computational graph of a reported variable at the first iteration of training.

    The file is in Graphviz's DOT language; where its ``dot`` is installed, a PNG image of the same
    name is drawn, too.

    Args:
        root_name: name of the value in the trainer's observation, such as ``'main/loss'``.
        filename: name of the file in the trainer's folder.
        variable_style (dict): DOT attributes of variables; None for the default.
        function_style (dict): DOT attributes of functions; None for the default.
    """

    default_name = "dump_graph"

    def __init__(self, root_name, filename="cg.dot", variable_style=None, function_style=None):
        self._root_name = root_name
        self._filename = filename
        self._styles = {"variable_style": variable_style, "function_style": function_style}
        self._keeping = None
        self._is_done = False

    def initialize(self, trainer):
        """Lets reported variables keep their graphs until the first call."""
        if self._is_done:
            return
        self._keeping = using_config("keep_graph_on_report", True)
        self._keeping.__enter__()

    def trigger(self, trainer):
        """Fires at the first iteration of training."""
        return not self._is_done

    def __call__(self, trainer):
        """Writes the graph; a value that was reported without a graph is only warned of.

        Raises:
            KeyError: there is no value of that name.
        """
        self._is_done = True
        self.finalize()
        if self._root_name not in trainer.observation:
            known = ", ".join(map(repr, trainer.observation)) or "none"
            raise KeyError(f"DumpGraph: {self._root_name!r} was not reported; reported: {known}")
        root = trainer.observation[self._root_name]
        if not isinstance(root, Variable) or root.creator_node is None:
            warnings.warn(
                f"DumpGraph: nothing is written, since {self._root_name!r} was reported without "
                "a graph",
                stacklevel=2,
            )
            return
        path = os.path.join(trainer.out, self._filename)
        with open_atomic(path, "w") as file:
            file.write(build_computational_graph([root], **self._styles).dump())
        _draw(path)

    def finalize(self):
        """Puts the configuration back."""
        if self._keeping is not None:
            self._keeping.__exit__(None, None, None)
            self._keeping = None

    def serialize(self, serializer):
        """Saves or restores whether the graph was written; then a resumed run does not write it."""
        self._is_done = serialize_optional(serializer, "_flag_called", self._is_done)
        serialize_optional(serializer, "_original_flag", False)  # Chainer's loader asks for it


dump_graph = DumpGraph
"""The name of :class:`DumpGraph` in older programs."""


def _draw(path):
    dot = shutil.which("dot")
    if dot is None:
        return
    image = os.path.splitext(path)[0] + ".png"
    try:
        with replacing(image) as temporary:
            command = [dot, "-Tpng", path, "-o", temporary]
            subprocess.run(command, check=True, timeout=MOST_SECONDS, capture_output=True)
    except subprocess.SubprocessError as error:
        warnings.warn(f"DumpGraph: {path} was written, but not drawn: {error}", stacklevel=3)


class unchain_variables(Extension):
    """Cuts the graphs off all variables of the observation, after the other extensions.

    That frees their memory in programs that keep graphs with ``config.keep_graph_on_report``.
    """

    priority = 0

    def trigger(self, trainer):
        """Fires at each iteration."""
        return True

    def __call__(self, trainer):
        """Cuts the graphs."""
        for value in trainer.observation.values():
            if isinstance(value, Variable):
                value.unchain_backward()
