"""Iterators, which yield batches of examples."""

from mpchain.iterators.dali import DaliIterator as DaliIterator
from mpchain.iterators.multiprocess import MultiprocessIterator as MultiprocessIterator
from mpchain.iterators.multithread import MultithreadIterator as MultithreadIterator
from mpchain.iterators.order_samplers import OrderSampler as OrderSampler
from mpchain.iterators.order_samplers import ShuffleOrderSampler as ShuffleOrderSampler
from mpchain.iterators.order_samplers import (
    SimilarLengthOrderSampler as SimilarLengthOrderSampler,
)
from mpchain.iterators.serial import SerialIterator as SerialIterator
