"""Optimizers for several ranks."""

from mpchain.distributed.optimizers.multi_node import MultiNodeOptimizer as MultiNodeOptimizer
from mpchain.distributed.optimizers.multi_node import (
    create_multi_node_optimizer as create_multi_node_optimizer,
)
from mpchain.distributed.optimizers.sharded import (
    create_sharded_optimizer as create_sharded_optimizer,
)
