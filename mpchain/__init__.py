"""mpchain: define-by-run deep learning, data-parallel from its first line."""

__version__ = "0.1.0"

from mpchain import (
    backend,
    backends,
    computational_graph,
    configuration,
    dataset,
    datasets,
    device_resident,
    distributions,
    exporters,
    function_hooks,
    functions,
    gradient_check,
    initializers,
    iterators,
    link_hooks,
    links,
    optimizer,
    optimizer_hooks,
    optimizers,
    reporter,
    serializer,
    serializers,
    training,
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
from mpchain.distributions import Distribution, cross_entropy, kl_divergence, register_kl
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
from mpchain.runtime_info import print_runtime_info
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

from mpchain import distributed  # isort: skip  (it stands on everything above)
from mpchain.distributed import (  # isort: skip
    CommunicatorBase,
    DataSizeError,
    create_communicator,
    create_multi_node_evaluator,
    create_multi_node_optimizer,
    scatter_dataset,
    scatter_index,
)

disable_experimental_feature_warning = False
"""Set it to True, and no experimental feature warns; see :func:`mpchain.utils.experimental`."""
