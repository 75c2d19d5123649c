"""Examples, with one folder for each task. ``python -m mpchain.examples`` copies an example."""
