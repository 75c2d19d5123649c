"""Datasets for several ranks."""

from mpchain.distributed.datasets import scatter as scatter
from mpchain.distributed.datasets.scatter import DataSizeError as DataSizeError
from mpchain.distributed.datasets.scatter import create_empty_dataset as create_empty_dataset
from mpchain.distributed.datasets.scatter import scatter_dataset as scatter_dataset
from mpchain.distributed.datasets.scatter import scatter_index as scatter_index
