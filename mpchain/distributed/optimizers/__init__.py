"""Optimizers for several ranks."""

from mpchain.distributed.optimizers.multi_node import (
    MultiNodeOptimizer,
    create_multi_node_optimizer,
)
from mpchain.distributed.optimizers.sharded import create_sharded_optimizer

__all__ = ["MultiNodeOptimizer", "create_multi_node_optimizer", "create_sharded_optimizer"]
