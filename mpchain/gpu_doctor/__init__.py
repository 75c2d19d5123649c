"""Programs that compare a GPU with the CPU, for ``mpchain-launch doctor --gpu``."""
