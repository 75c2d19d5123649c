"""Averaging gradients over ranks: buckets, compression, deterministic sums, equal parameters."""

# Importing this module adds methods to communicators.
from mpchain.distributed.gradients import buckets
