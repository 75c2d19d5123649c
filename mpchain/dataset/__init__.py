"""Base classes of datasets, iterators and converters, and the cache of downloaded files."""

from mpchain.dataset import tabular as tabular
from mpchain.dataset.asynchronous_transfer import ConcatWithAsyncTransfer as ConcatWithAsyncTransfer
from mpchain.dataset.cache import cache_or_load_file as cache_or_load_file
from mpchain.dataset.cache import get_dataset_directory as get_dataset_directory
from mpchain.dataset.cache import get_dataset_root as get_dataset_root
from mpchain.dataset.cache import set_dataset_root as set_dataset_root
from mpchain.dataset.convert import Converter as Converter
from mpchain.dataset.convert import concat_examples as concat_examples
from mpchain.dataset.convert import converter as converter
from mpchain.dataset.convert import to_device as to_device
from mpchain.dataset.dataset_mixin import DatasetMixin as DatasetMixin
from mpchain.dataset.download import cached_download as cached_download
from mpchain.dataset.iterator import Iterator as Iterator
from mpchain.dataset.tabular_dataset import TabularDataset as TabularDataset
