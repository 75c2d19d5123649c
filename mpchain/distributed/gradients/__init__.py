"""Averaging gradients over ranks: buckets, compression, deterministic sums, equal parameters."""

from mpchain.distributed.gradients import buckets  # installs the methods of communicators
