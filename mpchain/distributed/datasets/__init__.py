"""Datasets for several ranks."""

from mpchain.distributed.datasets import scatter
from mpchain.distributed.datasets.scatter import (
    DataSizeError,
    create_empty_dataset,
    scatter_dataset,
    scatter_index,
)

__all__ = [
    "DataSizeError",
    "create_empty_dataset",
    "scatter",
    "scatter_dataset",
    "scatter_index",
]
