"""Requests NCCL without a GPU, which is refused with a reason."""

import chainermn

try:
    chainermn.create_communicator("pure_nccl")
except (RuntimeError, ValueError) as error:
    assert "GPU" in str(error) or "NCCL" in str(error), error
    if chainermn.create_communicator("naive").rank == 0:
        print("refused")
