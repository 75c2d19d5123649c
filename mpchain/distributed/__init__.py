"""Training on several ranks: communicators, and what averages gradients and results over them."""

from mpchain.distributed import (
    communicators,
    datasets,
    extensions,
    functions,
    global_except_hook,
    iterators,
    links,
    nccl,
    optimizers,
    testing,
    updaters,
)
from mpchain.distributed.checkpoints import load_checkpoint, save_checkpoint
from mpchain.distributed.communicators import CommunicatorBase, create_communicator
from mpchain.distributed.datasets import (
    DataSizeError,
    create_empty_dataset,
    scatter_dataset,
    scatter_index,
)
from mpchain.distributed.extensions import (
    GenericMultiNodeEvaluator,
    create_multi_node_checkpointer,
    create_multi_node_evaluator,
)
from mpchain.distributed.gradients import compression
from mpchain.distributed.iterators import (
    create_joined_iterator,
    create_multi_node_iterator,
    create_sharded_iterator,
    create_synchronized_iterator,
)
from mpchain.distributed.links import MultiNodeChainList
from mpchain.distributed.optimizers import create_multi_node_optimizer
from mpchain.distributed.optimizers.sharded import create_sharded_optimizer
from mpchain.distributed.updaters import MultiNodeUpdater
from mpchain.distributed.watch import CollectiveMismatchError

__all__ = [
    "CollectiveMismatchError",
    "CommunicatorBase",
    "DataSizeError",
    "GenericMultiNodeEvaluator",
    "MultiNodeChainList",
    "MultiNodeUpdater",
    "communicators",
    "compression",
    "create_communicator",
    "create_empty_dataset",
    "create_joined_iterator",
    "create_multi_node_checkpointer",
    "create_multi_node_evaluator",
    "create_multi_node_iterator",
    "create_multi_node_optimizer",
    "create_sharded_iterator",
    "create_sharded_optimizer",
    "create_synchronized_iterator",
    "datasets",
    "extensions",
    "functions",
    "global_except_hook",
    "iterators",
    "links",
    "load_checkpoint",
    "nccl",
    "optimizers",
    "save_checkpoint",
    "scatter_dataset",
    "scatter_index",
    "testing",
    "updaters",
]

global_except_hook.add_hook_if_asked()
