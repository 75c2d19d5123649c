"""Trainer extensions for several ranks; those that communicate are to be added on all of them."""

from mpchain.distributed.checkpoints import checkpoint
from mpchain.distributed.extensions.aggregation import AllreducePersistent, ObservationAggregator
from mpchain.distributed.extensions.checkpointer import create_multi_node_checkpointer
from mpchain.distributed.extensions.early_stopping import MultiNodeEarlyStoppingTrigger
from mpchain.distributed.extensions.evaluators import (
    GenericMultiNodeEvaluator,
    create_multi_node_evaluator,
)
from mpchain.distributed.extensions.gather_state import GatherState
from mpchain.distributed.extensions.multi_node_snapshot import multi_node_snapshot
from mpchain.distributed.extensions.one_rank import only_on_rank_0
from mpchain.distributed.extensions.progress_bar import MultiNodeProgressBar

__all__ = [
    "AllreducePersistent",
    "GatherState",
    "GenericMultiNodeEvaluator",
    "MultiNodeEarlyStoppingTrigger",
    "MultiNodeProgressBar",
    "ObservationAggregator",
    "checkpoint",
    "create_multi_node_checkpointer",
    "create_multi_node_evaluator",
    "multi_node_snapshot",
    "only_on_rank_0",
]
