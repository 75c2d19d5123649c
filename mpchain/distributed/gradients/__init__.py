"""Averaging gradients over ranks: buckets, compression, deterministic sums, equal parameters."""

from mpchain.distributed.gradients import model  # installs the methods of communicators
