"""Averaging gradients over ranks: buckets, compression, deterministic sums, equal parameters."""
