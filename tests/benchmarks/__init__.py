"""Benchmarks: each compares mpchain with its peers in one run, interleaved, and prints medians and ratios."""
