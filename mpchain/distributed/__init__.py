"""Training on several ranks: communicators, and what averages gradients and results over them."""

from mpchain.distributed import (
    communicators,
    datasets,
    extensions,
    global_except_hook,
    iterators,
    optimizers,
    updaters,
)
from mpchain.distributed.communicators import CommunicatorBase, create_communicator
from mpchain.distributed.datasets import (
    DataSizeError,
    create_empty_dataset,
    scatter_dataset,
    scatter_index,
)
from mpchain.distributed.extensions import create_multi_node_evaluator
from mpchain.distributed.iterators import create_sharded_iterator, create_synchronized_iterator
from mpchain.distributed.optimizers import create_multi_node_optimizer
from mpchain.distributed.updaters import MultiNodeUpdater

__all__ = [
    "CommunicatorBase",
    "DataSizeError",
    "MultiNodeUpdater",
    "communicators",
    "create_communicator",
    "create_empty_dataset",
    "create_multi_node_evaluator",
    "create_multi_node_optimizer",
    "create_sharded_iterator",
    "create_synchronized_iterator",
    "datasets",
    "extensions",
    "global_except_hook",
    "iterators",
    "optimizers",
    "scatter_dataset",
    "scatter_index",
    "updaters",
]

global_except_hook.add_hook_if_asked()
