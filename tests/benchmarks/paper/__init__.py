"""Estimates training steps on a GPU that is not present, from bytes, operations and launches."""
