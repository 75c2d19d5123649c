"""Support for the old paths of public modules that have moved: importing an old path works, and
warns once of the new path."""

import importlib
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

MOVED = {
    "mpchain.batch": "mpchain.functions.batch",
    "mpchain.dtypes": "mpchain.backends.dtypes",
    "mpchain.functions.declaration": "mpchain.functions.declaring.declaration",
    "mpchain.loss_scale": "mpchain.kernels.gpu.loss_scale",
    "mpchain.model_summary": "mpchain.profiling.model_summary",
    "mpchain.ranks": "mpchain.distributed.notebooks",
    "mpchain.training.updaters.multiprocess_parallel": "mpchain.distributed.multiprocess_parallel",
    "mpchain.runtime_info": "mpchain.utils.runtime_info",
}
"""The new name of each module that has moved, by its old name."""

NICKNAMES = {
    "mpchain.initializer": "mpchain.initializers.initializer",
    "mpchain.links.caffe": "mpchain.exporters.caffe_function",
    "mpchain.onnx": "mpchain.exporters.onnx",
}
"""Other names of modules, such as short names and Chainer's names, which give no warning."""


class Finder:
    """Finds modules by their old names; see :data:`sys.meta_path`.

    Example:
        >>> from mpchain.initializer import get_fans
        >>> get_fans is mpchain.initializers.get_fans
        True
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns a specification whose loader imports the module from its new path; None for a
        module that has no other path."""
        if name in MOVED or name in NICKNAMES:
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Returns None, so that Python makes a module, which :meth:`exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Replaces the module by the module at the new path."""
        old = module.__name__
        if old in MOVED:
            warnings.warn(f"{old} is {MOVED[old]} now", FutureWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(MOVED.get(old) or NICKNAMES[old])
