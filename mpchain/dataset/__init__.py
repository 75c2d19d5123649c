"""What datasets, iterators and converters have in common, and the cache of downloaded files."""

from mpchain.dataset import tabular
from mpchain.dataset.asynchronous_transfer import ConcatWithAsyncTransfer
from mpchain.dataset.cache import (
    cache_or_load_file,
    get_dataset_directory,
    get_dataset_root,
    set_dataset_root,
)
from mpchain.dataset.convert import Converter, concat_examples, converter, to_device
from mpchain.dataset.dataset_mixin import DatasetMixin
from mpchain.dataset.download import cached_download
from mpchain.dataset.iterator import Iterator
from mpchain.dataset.tabular_dataset import TabularDataset

__all__ = [
    "ConcatWithAsyncTransfer",
    "Converter",
    "DatasetMixin",
    "Iterator",
    "TabularDataset",
    "cache_or_load_file",
    "cached_download",
    "concat_examples",
    "converter",
    "get_dataset_directory",
    "get_dataset_root",
    "set_dataset_root",
    "tabular",
    "to_device",
]
