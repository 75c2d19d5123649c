"""NCCL, which the double does not have."""

available = False
