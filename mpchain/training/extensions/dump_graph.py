"""Extensions that write, or cut off, the graphs of reported variables."""

import contextlib
import os
import shutil
import subprocess
import sys
import warnings
from typing import Any

from mpchain.computational_graph import build_computational_graph
from mpchain.configuration import using_config
from mpchain.serializer import AbstractSerializer
from mpchain.serializers.files import open_atomic, replacing
from mpchain.training.extension import Extension
from mpchain.training.named_parts import listing
from mpchain.training.progress import print_line
from mpchain.training.states import serialize_optional
from mpchain.training.trainer import Trainer
from mpchain.variable import Variable

MOST_SECONDS = 60
"""The seconds that Graphviz has to draw a graph."""


class DumpGraph(Extension):
    """Writes the computational graph of a reported variable at the first iteration of training.

    The file is in Graphviz's DOT language. If Graphviz's ``dot`` is installed, it also draws a PNG
    and an SVG image of the same name; otherwise a line says how to draw them.

    Args:
        root_name: name of the value in the trainer's observation, such as ``'main/loss'``.
        filename: name of the file in the trainer's folder. For the name of an image, such as
            ``'cg.svg'``, the file is ``cg.dot``.
        variable_style: DOT attributes of variables; None for the default.
        function_style: DOT attributes of functions; None for the default.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> trainer.extend(DumpGraph("main/loss", variable_style={"shape": "octagon"}))
    """

    default_name = "dump_graph"
    is_report = True

    def __init__(
        self,
        root_name: str,
        filename: str = "cg.dot",
        variable_style: dict[str, str] | None = None,
        function_style: dict[str, str] | None = None,
    ) -> None:
        self._root_name = root_name
        self._filename = filename
        self._styles: Any = {"variable_style": variable_style, "function_style": function_style}
        self._keeping = contextlib.ExitStack()
        self._is_done = False

    def initialize(self, trainer: Trainer) -> None:
        """Makes reported variables keep their graphs until the first call."""
        if not self._is_done:
            self._keeping.enter_context(using_config("keep_graph_on_report", True))

    def trigger(self, trainer: Trainer) -> bool:
        """Returns whether the graph is still to be written."""
        return not self._is_done

    def __call__(self, trainer: Trainer) -> None:
        """Writes the graph; warns if the value was reported without a graph.

        Raises:
            KeyError: there is no value of that name.
        """
        self._is_done = True
        self.finalize()
        observation = trainer.observation
        if self._root_name not in observation:
            raise KeyError(
                f"DumpGraph: {self._root_name!r} was not reported; reported: {listing(observation)}"
            )
        root = observation[self._root_name]
        if not isinstance(root, Variable) or root.creator_node is None:
            warnings.warn(
                f"DumpGraph: no graph is written, because {self._root_name!r} was reported "
                "without a graph",
                stacklevel=2,
            )
            return
        path = os.path.join(trainer.out, self._filename)
        base, kind = os.path.splitext(path)
        if kind in (".png", ".svg"):  # these are names of images
            path = f"{base}.dot"
        with open_atomic(path, "w") as file:
            file.write(build_computational_graph([root], **self._styles).dump())
        _draw(path)

    def finalize(self) -> None:
        """Restores the configuration entry ``keep_graph_on_report``."""
        self._keeping.close()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores whether the graph was written, so that it is written once."""
        self._is_done = serialize_optional(serializer, "_flag_called", self._is_done)
        # The loader of Chainer requires this key.
        serialize_optional(serializer, "_original_flag", False)


dump_graph = DumpGraph
"""The name of :class:`DumpGraph` in programs for Chainer."""


def _draw(path):
    dot = shutil.which("dot")
    base = os.path.splitext(path)[0]
    if dot is None:
        hint = f"DumpGraph: to see the graph, install Graphviz: dot -Tsvg {path} -o {base}.svg"
        print_line(hint, sys.stderr)
        return
    try:
        for kind in ("png", "svg"):
            with replacing(f"{base}.{kind}") as temporary:
                command = [dot, f"-T{kind}", path, "-o", temporary]
                subprocess.run(command, check=True, timeout=MOST_SECONDS, capture_output=True)
    except subprocess.SubprocessError as error:
        warnings.warn(f"DumpGraph: {path} was written, but not drawn: {error}", stacklevel=3)


class unchain_variables(Extension):
    """Cuts off the graphs of all variables of the observation, after the extensions that read it.

    This frees the memory of the graphs in programs that keep them with
    ``config.keep_graph_on_report``.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> trainer.extend(unchain_variables())
    """

    priority = 0

    def trigger(self, trainer: Trainer) -> bool:
        """Returns True: the extension runs at each iteration."""
        return True

    def __call__(self, trainer: Trainer) -> None:
        """Cuts off the graphs of the observed variables."""
        for value in trainer.observation.values():
            if isinstance(value, Variable):
                value.unchain_backward()
