"""mpchain: define-by-run deep learning, data-parallel from its first line.

What every program needs is imported here; of the rest, each room when it is first used.
"""

import importlib
import signal
import sys

__version__ = "0.1.0"

if sys.orig_argv[1:3] == ["-m", "mpchain.launch"]:
    # Python imports this package before the launcher. Ctrl-C then needs no traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

from mpchain import (
    backend,
    backends,
    configuration,
    device_resident,
    functions,
    initializers,
    optimizer,
    reporter,
    serializer,
    utils,
    variable,
    warnings,
)
from mpchain.backend import get_array_module, get_device, using_device
from mpchain.backends import cuda
from mpchain.backends.cuda import should_use_cudnn, should_use_cudnn_tensor_core
from mpchain.backprop import backward, grad
from mpchain.configuration import (
    DebugMode,
    config,
    force_backprop_mode,
    get_compute_mode,
    get_dtype,
    global_config,
    is_debug,
    mixed16,
    no_backprop_mode,
    set_debug,
    using_config,
)
from mpchain.device_resident import DeviceResident
from mpchain.function import Function, FunctionAdapter
from mpchain.function_hook import FunctionHook, get_function_hooks
from mpchain.function_node import Fallback, FunctionNode
from mpchain.initializer import Initializer
from mpchain.link import Chain, ChainList, Link, Sequential
from mpchain.link_hook import LinkHook
from mpchain.optimizer import GradientMethod, Optimizer, UpdateRule
from mpchain.reporter import (
    DictSummary,
    Reporter,
    Summary,
    get_current_reporter,
    report,
    report_scope,
)
from mpchain.serializer import AbstractSerializer, Deserializer, Serializer
from mpchain.variable import (
    Parameter,
    Variable,
    as_array,
    as_variable,
    get_array_types,
    get_cpu_array_types,
    is_arrays_compatible,
)

disable_experimental_feature_warning = False
"""Set it to True, and no experimental feature warns; see :func:`mpchain.utils.experimental`."""

_LATER = {
    "": (
        "computational_graph dataset datasets distributed distributions exporters "
        "function_hooks gradient_check iterators link_hooks links optimizer_hooks optimizers "
        "serializers training"
    ),
    "distributed": (
        "CommunicatorBase DataSizeError MultiNodeChainList create_communicator "
        "create_multi_node_checkpointer create_multi_node_evaluator "
        "create_multi_node_optimizer scatter_dataset scatter_index"
    ),
    "distributions": "Distribution cross_entropy kl_divergence register_kl",
    "runtime_info": "print_runtime_info",
}
"""Rooms that are imported when they are first used, and names of them that stand here too."""

_ROOM_OF = {name: room for room, names in _LATER.items() for name in names.split()}


def __getattr__(name):
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = _ROOM_OF[name]
    if room:
        value = getattr(importlib.import_module(f"{__name__}.{room}"), name)
    else:
        value = importlib.import_module(f"{__name__}.{name}")
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_ROOM_OF})
