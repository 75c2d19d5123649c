"""``python -m mpchain.launch``, which does the same as ``mpchain-launch``."""
