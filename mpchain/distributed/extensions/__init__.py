"""Trainer extensions for several ranks. An extension that communicates must be added on all
ranks."""

from mpchain.distributed.checkpoints import checkpoint as checkpoint
from mpchain.distributed.extensions.aggregation import AllreducePersistent as AllreducePersistent
from mpchain.distributed.extensions.aggregation import (
    ObservationAggregator as ObservationAggregator,
)
from mpchain.distributed.extensions.checkpointer import (
    create_multi_node_checkpointer as create_multi_node_checkpointer,
)
from mpchain.distributed.extensions.early_stopping import (
    MultiNodeEarlyStoppingTrigger as MultiNodeEarlyStoppingTrigger,
)
from mpchain.distributed.extensions.evaluators import (
    GenericMultiNodeEvaluator as GenericMultiNodeEvaluator,
)
from mpchain.distributed.extensions.evaluators import (
    create_multi_node_evaluator as create_multi_node_evaluator,
)
from mpchain.distributed.extensions.gather_state import GatherState as GatherState
from mpchain.distributed.extensions.multi_node_snapshot import (
    multi_node_snapshot as multi_node_snapshot,
)
from mpchain.distributed.extensions.one_rank import only_on_rank_0 as only_on_rank_0
from mpchain.distributed.extensions.progress_bar import MultiNodeProgressBar as MultiNodeProgressBar
