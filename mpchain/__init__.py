"""mpchain: define-by-run deep learning, data-parallel from its first line."""

__version__ = "0.1.0"

from mpchain import backend, backends, functions
from mpchain.backend import get_array_module, get_device, using_device
from mpchain.backends import cuda
from mpchain.backprop import backward, grad
from mpchain.configuration import (
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
from mpchain.function_node import FunctionNode
from mpchain.variable import (
    Parameter,
    Variable,
    as_array,
    as_variable,
    get_array_types,
    get_cpu_array_types,
    is_arrays_compatible,
)
