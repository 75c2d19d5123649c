"""mpchain: define-by-run deep learning, data-parallel from its first line.

Names that most programs need are imported here; other names are imported when first used.
"""

import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING

if sys.orig_argv[1:3] == ["-m", "mpchain.launch"]:
    # Python imports this package before the launcher. Ctrl-C during this import shall end the
    # launcher without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

from mpchain import annexes as annexes
from mpchain import backend as backend
from mpchain import backends as backends
from mpchain import configuration as configuration
from mpchain import device_resident as device_resident
from mpchain import from_pytorch as from_pytorch
from mpchain import functions as functions
from mpchain import initializers as initializers
from mpchain import optimizer as optimizer
from mpchain import reporter as reporter
from mpchain import serializer as serializer
from mpchain import utils as utils
from mpchain import variable as variable
from mpchain import warnings as warnings
from mpchain.backend import get_array_module as get_array_module
from mpchain.backend import get_device as get_device
from mpchain.backend import using_device as using_device
from mpchain.backends import cuda as cuda
from mpchain.backends.cuda import should_use_cudnn as should_use_cudnn
from mpchain.backends.cuda import should_use_cudnn_tensor_core as should_use_cudnn_tensor_core
from mpchain.backends.host_memory import keep_freed_memory as keep_freed_memory
from mpchain.backprop import backward as backward
from mpchain.backprop import grad as grad
from mpchain.configuration import DebugMode as DebugMode
from mpchain.configuration import config as config
from mpchain.configuration import force_backprop_mode as force_backprop_mode
from mpchain.configuration import get_compute_mode as get_compute_mode
from mpchain.configuration import get_dtype as get_dtype
from mpchain.configuration import global_config as global_config
from mpchain.configuration import is_debug as is_debug
from mpchain.configuration import mixed16 as mixed16
from mpchain.configuration import mixed_bf16 as mixed_bf16
from mpchain.configuration import no_backprop_mode as no_backprop_mode
from mpchain.configuration import set_debug as set_debug
from mpchain.configuration import using_config as using_config
from mpchain.device_resident import DeviceResident as DeviceResident
from mpchain.function import Function as Function
from mpchain.function import FunctionAdapter as FunctionAdapter
from mpchain.function_hook import FunctionHook as FunctionHook
from mpchain.function_hook import get_function_hooks as get_function_hooks
from mpchain.function_node import Fallback as Fallback
from mpchain.function_node import FunctionNode as FunctionNode
from mpchain.functions.batch import batch_count as batch_count
from mpchain.functions.batch import batch_mean as batch_mean
from mpchain.functions.batch import batch_sum as batch_sum
from mpchain.functions.counting import own_counts as own_counts
from mpchain.functions.counting import shared_counts as shared_counts
from mpchain.functions.declaring.declaration import differentiable as differentiable
from mpchain.functions.declaring.declaration import elementwise as elementwise
from mpchain.initializers.initializer import Initializer as Initializer
from mpchain.link import Chain as Chain
from mpchain.link import ChainList as ChainList
from mpchain.link import Link as Link
from mpchain.link import Sequential as Sequential
from mpchain.link_hook import LinkHook as LinkHook
from mpchain.optimizer import GradientMethod as GradientMethod
from mpchain.optimizer import Optimizer as Optimizer
from mpchain.optimizer import UpdateRule as UpdateRule
from mpchain.reporter import DictSummary as DictSummary
from mpchain.reporter import Reporter as Reporter
from mpchain.reporter import Summary as Summary
from mpchain.reporter import get_current_reporter as get_current_reporter
from mpchain.reporter import report as report
from mpchain.reporter import report_scope as report_scope
from mpchain.serializer import AbstractSerializer as AbstractSerializer
from mpchain.serializer import Deserializer as Deserializer
from mpchain.serializer import Serializer as Serializer
from mpchain.utils import moved
from mpchain.utils.version import __version__ as __version__
from mpchain.variable import Parameter as Parameter
from mpchain.variable import Variable as Variable
from mpchain.variable import as_array as as_array
from mpchain.variable import as_variable as as_variable
from mpchain.variable import get_array_types as get_array_types
from mpchain.variable import get_cpu_array_types as get_cpu_array_types
from mpchain.variable import is_arrays_compatible as is_arrays_compatible

if TYPE_CHECKING:  # type checkers see what __getattr__ imports
    from mpchain import computational_graph as computational_graph
    from mpchain import dataset as dataset
    from mpchain import datasets as datasets
    from mpchain import distributed as distributed
    from mpchain import distributions as distributions
    from mpchain import exporters as exporters
    from mpchain import function_hooks as function_hooks
    from mpchain import gradient_check as gradient_check
    from mpchain import interop as interop
    from mpchain import iterators as iterators
    from mpchain import link_hooks as link_hooks
    from mpchain import links as links
    from mpchain import metrics as metrics
    from mpchain import optimizer_hooks as optimizer_hooks
    from mpchain import optimizers as optimizers
    from mpchain import profiling as profiling
    from mpchain import serializers as serializers
    from mpchain import training as training
    from mpchain import transforms as transforms
    from mpchain.captured import Captured as Captured
    from mpchain.captured import capture as capture
    from mpchain.distributed import CommunicatorBase as CommunicatorBase
    from mpchain.distributed import DataSizeError as DataSizeError
    from mpchain.distributed import MultiNodeChainList as MultiNodeChainList
    from mpchain.distributed import create_communicator as create_communicator
    from mpchain.distributed import create_multi_node_checkpointer as create_multi_node_checkpointer
    from mpchain.distributed import create_multi_node_evaluator as create_multi_node_evaluator
    from mpchain.distributed import create_multi_node_optimizer as create_multi_node_optimizer
    from mpchain.distributed import scatter_dataset as scatter_dataset
    from mpchain.distributed import scatter_index as scatter_index
    from mpchain.distributed.notebooks import run as run
    from mpchain.distributions import Distribution as Distribution
    from mpchain.distributions import cross_entropy as cross_entropy
    from mpchain.distributions import kl_divergence as kl_divergence
    from mpchain.distributions import register_kl as register_kl
    from mpchain.exporters import onnx as onnx
    from mpchain.profiling import profile as profile
    from mpchain.profiling.model_summary import ModelSummary as ModelSummary
    from mpchain.profiling.model_summary import summary as summary
    from mpchain.transforms import functional_call as functional_call
    from mpchain.transforms import ggn as ggn
    from mpchain.transforms import hessian as hessian
    from mpchain.transforms import hvp as hvp
    from mpchain.transforms import jacobian as jacobian
    from mpchain.transforms import jvp as jvp
    from mpchain.transforms import linearize as linearize
    from mpchain.transforms import value_and_grad as value_and_grad
    from mpchain.transforms import vjp as vjp
    from mpchain.utils.runtime_info import print_runtime_info as print_runtime_info

sys.meta_path.append(moved.Finder())

disable_experimental_feature_warning = False
"""Whether to silence the warnings of experimental features; see
:func:`mpchain.utils.experimental`."""

_LATER = {
    "": (
        "computational_graph dataset datasets distributed distributions function_hooks "
        "gradient_check iterators link_hooks links optimizer_hooks optimizers serializers training"
    ),
    "distributed": (
        "CommunicatorBase DataSizeError MultiNodeChainList create_communicator "
        "create_multi_node_checkpointer create_multi_node_evaluator "
        "create_multi_node_optimizer scatter_dataset scatter_index"
    ),
    "distributions": "Distribution cross_entropy kl_divergence register_kl",
    "distributed.notebooks": "run",
    "utils.runtime_info": "print_runtime_info",
}
"""The names that are imported at first use, by the module below ``mpchain`` that defines them; the
names of ``""`` are modules."""

_OF_ANNEXES = {
    "captured": "captured captured:Captured captured:capture",
    "interop": "exporters exporters.onnx interop",
    "metrics": "metrics",
    "profiling": (
        "profiling profiling:profile "
        "profiling.model_summary:ModelSummary profiling.model_summary:summary"
    ),
    "transforms": (
        "transforms transforms:functional_call transforms:ggn transforms:hessian transforms:hvp "
        "transforms:jacobian transforms:jvp transforms:linearize transforms:value_and_grad "
        "transforms:vjp"
    ),
}
"""For each annex, the modules and names that ``mpchain`` exports if the annex is installed; see
:func:`mpchain.annexes.present`."""

_ROOM_OF = {name: room for room, names in _LATER.items() for name in names.split()}
_MOVED = {old.rpartition(".")[2] for old in moved.MOVED if old.count(".") == 1}
_otherwise = annexes.later(__name__, _OF_ANNEXES, from_pytorch.module_getattr(__name__))


def __getattr__(name):
    if name not in _ROOM_OF and name not in _MOVED:
        return _otherwise(name)
    room = _ROOM_OF.get(name)
    if room:
        value = getattr(importlib.import_module(f"{__name__}.{room}"), name)
    else:
        value = importlib.import_module(f"{__name__}.{name}")
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_ROOM_OF, *annexes.present(_OF_ANNEXES)})


if "MPCHAIN_TRACE" in os.environ:  # mpchain-launch --trace sets this variable
    annexes.load("profiling", "profiling.launched", "mpchain-launch --trace").start()
if "MPCHAIN_RECORD" in os.environ:  # mpchain-launch --record sets this variable
    annexes.load("replays", "replays.launched", "mpchain-launch --record").start()
