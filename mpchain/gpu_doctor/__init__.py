"""Programs that compare GPU results with CPU results, for ``mpchain-launch doctor --gpu``."""
