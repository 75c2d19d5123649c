"""Benchmarks that run mpchain and its peers alternately, and print medians and ratios."""
