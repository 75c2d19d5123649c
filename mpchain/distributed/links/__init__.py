"""Links that ranks compute together, on samples of all ranks or as parts of one model."""

from mpchain.distributed.links.batch_normalization import (
    MultiNodeBatchNormalization as MultiNodeBatchNormalization,
)
from mpchain.distributed.links.batch_normalization import create_mnbn_model as create_mnbn_model
from mpchain.distributed.links.chain_list import MultiNodeChainList as MultiNodeChainList
from mpchain.distributed.links.n_step_rnn import (
    create_multi_node_n_step_rnn as create_multi_node_n_step_rnn,
)
from mpchain.distributed.links.parallel_linear import ColumnParallelLinear as ColumnParallelLinear
from mpchain.distributed.links.parallel_linear import RowParallelLinear as RowParallelLinear
