"""Iterators: batches of examples, epoch after epoch."""

from mpchain.iterators.dali import DaliIterator
from mpchain.iterators.multiprocess import MultiprocessIterator
from mpchain.iterators.multithread import MultithreadIterator
from mpchain.iterators.order_samplers import OrderSampler, ShuffleOrderSampler
from mpchain.iterators.serial import SerialIterator

__all__ = [
    "DaliIterator",
    "MultiprocessIterator",
    "MultithreadIterator",
    "OrderSampler",
    "SerialIterator",
    "ShuffleOrderSampler",
]
