"""Training on several ranks: communicators, and averages of gradients and results over ranks."""

from typing import TYPE_CHECKING

from mpchain import annexes
from mpchain.backends import pynccl as pynccl
from mpchain.distributed import communicators as communicators
from mpchain.distributed import datasets as datasets
from mpchain.distributed import extensions as extensions
from mpchain.distributed import functions as functions
from mpchain.distributed import global_except_hook as global_except_hook
from mpchain.distributed import iterators as iterators
from mpchain.distributed import links as links
from mpchain.distributed import nccl as nccl
from mpchain.distributed import optimizers as optimizers
from mpchain.distributed import testing as testing
from mpchain.distributed import updaters as updaters
from mpchain.distributed.checkpoints import load_checkpoint as load_checkpoint
from mpchain.distributed.checkpoints import save_checkpoint as save_checkpoint
from mpchain.distributed.communicators import CommunicatorBase as CommunicatorBase
from mpchain.distributed.communicators import create_communicator as create_communicator
from mpchain.distributed.datasets import DataSizeError as DataSizeError
from mpchain.distributed.datasets import create_empty_dataset as create_empty_dataset
from mpchain.distributed.datasets import scatter_dataset as scatter_dataset
from mpchain.distributed.datasets import scatter_index as scatter_index
from mpchain.distributed.extensions import GenericMultiNodeEvaluator as GenericMultiNodeEvaluator
from mpchain.distributed.extensions import (
    create_multi_node_checkpointer as create_multi_node_checkpointer,
)
from mpchain.distributed.extensions import (
    create_multi_node_evaluator as create_multi_node_evaluator,
)
from mpchain.distributed.gradients import compression as compression
from mpchain.distributed.iterators import create_joined_iterator as create_joined_iterator
from mpchain.distributed.iterators import create_multi_node_iterator as create_multi_node_iterator
from mpchain.distributed.iterators import create_sharded_iterator as create_sharded_iterator
from mpchain.distributed.iterators import (
    create_synchronized_iterator as create_synchronized_iterator,
)
from mpchain.distributed.links import MultiNodeChainList as MultiNodeChainList
from mpchain.distributed.optimizers import (
    create_multi_node_optimizer as create_multi_node_optimizer,
)
from mpchain.distributed.optimizers.sharded import (
    create_sharded_optimizer as create_sharded_optimizer,
)
from mpchain.distributed.updaters import MultiNodeUpdater as MultiNodeUpdater
from mpchain.distributed.watch import CollectiveMismatchError as CollectiveMismatchError
from mpchain.distributed.watch import RanksLost as RanksLost

if TYPE_CHECKING:
    from mpchain.distributed.recovery import InMemoryCheckpoint as InMemoryCheckpoint
    from mpchain.distributed.recovery import run_elastic as run_elastic

_OF_ANNEXES = {
    "recovery": "distributed.recovery:InMemoryCheckpoint distributed.recovery:run_elastic"
}


def _refuse(name):
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


# Type checkers do not understand this assignment. If they did, they would assume that the module
# has every name.
globals()["__getattr__"] = annexes.later(__name__, _OF_ANNEXES, _refuse)

global_except_hook.add_hook_if_asked()
