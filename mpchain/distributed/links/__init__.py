"""Links whose computation the ranks share, by the same samples or by parts of one model."""

from mpchain.distributed.links.batch_normalization import (
    MultiNodeBatchNormalization,
    create_mnbn_model,
)
from mpchain.distributed.links.chain_list import MultiNodeChainList
from mpchain.distributed.links.n_step_rnn import create_multi_node_n_step_rnn
from mpchain.distributed.links.parallel_linear import ColumnParallelLinear, RowParallelLinear

__all__ = [
    "ColumnParallelLinear",
    "MultiNodeBatchNormalization",
    "MultiNodeChainList",
    "RowParallelLinear",
    "create_mnbn_model",
    "create_multi_node_n_step_rnn",
]
