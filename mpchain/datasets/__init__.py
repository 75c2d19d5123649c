"""Datasets made of other datasets or of files, and sets of real data."""

from mpchain.datasets import transforms as transforms
from mpchain.datasets.augmented import AugmentedDataset as AugmentedDataset
from mpchain.datasets.cifar import get_cifar10 as get_cifar10
from mpchain.datasets.cifar import get_cifar100 as get_cifar100
from mpchain.datasets.combined import ConcatenatedDataset as ConcatenatedDataset
from mpchain.datasets.combined import DictDataset as DictDataset
from mpchain.datasets.combined import TransformDataset as TransformDataset
from mpchain.datasets.combined import TupleDataset as TupleDataset
from mpchain.datasets.digits import get_digits as get_digits
from mpchain.datasets.digits import get_mnist5k as get_mnist5k
from mpchain.datasets.image_folder import ImageFolderDataset as ImageFolderDataset
from mpchain.datasets.images import ImageDataset as ImageDataset
from mpchain.datasets.images import LabeledImageDataset as LabeledImageDataset
from mpchain.datasets.images import LabeledZippedImageDataset as LabeledZippedImageDataset
from mpchain.datasets.images import MultiZippedImageDataset as MultiZippedImageDataset
from mpchain.datasets.images import ZippedImageDataset as ZippedImageDataset
from mpchain.datasets.mnist import get_fashion_mnist as get_fashion_mnist
from mpchain.datasets.mnist import get_fashion_mnist_labels as get_fashion_mnist_labels
from mpchain.datasets.mnist import get_kuzushiji_mnist as get_kuzushiji_mnist
from mpchain.datasets.mnist import get_kuzushiji_mnist_labels as get_kuzushiji_mnist_labels
from mpchain.datasets.mnist import get_mnist as get_mnist
from mpchain.datasets.pickled import PickleDataset as PickleDataset
from mpchain.datasets.pickled import PickleDatasetWriter as PickleDatasetWriter
from mpchain.datasets.pickled import open_pickle_dataset as open_pickle_dataset
from mpchain.datasets.pickled import open_pickle_dataset_writer as open_pickle_dataset_writer
from mpchain.datasets.ptb import get_ptb_words as get_ptb_words
from mpchain.datasets.ptb import get_ptb_words_vocabulary as get_ptb_words_vocabulary
from mpchain.datasets.split import SubDataset as SubDataset
from mpchain.datasets.split import get_cross_validation_datasets as get_cross_validation_datasets
from mpchain.datasets.split import (
    get_cross_validation_datasets_random as get_cross_validation_datasets_random,
)
from mpchain.datasets.split import split_dataset as split_dataset
from mpchain.datasets.split import split_dataset_n as split_dataset_n
from mpchain.datasets.split import split_dataset_n_random as split_dataset_n_random
from mpchain.datasets.split import split_dataset_random as split_dataset_random
from mpchain.datasets.svhn import get_svhn as get_svhn
from mpchain.datasets.table import TableDataset as TableDataset
from mpchain.datasets.text import TextDataset as TextDataset
from mpchain.datasets.vocabulary import Vocabulary as Vocabulary
