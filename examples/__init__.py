"""Examples: one folder for each task. ``python -m mpchain.examples`` copies them."""
