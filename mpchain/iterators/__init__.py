"""Iterators: batches of examples, epoch after epoch."""

from mpchain.iterators.order_samplers import OrderSampler, ShuffleOrderSampler
from mpchain.iterators.serial import SerialIterator

__all__ = ["OrderSampler", "SerialIterator", "ShuffleOrderSampler"]
