"""Benchmarks: mpchain and its peers in one run, interleaved; medians and ratios are printed."""
