"""What training steps take of a GPU that is not there, from bytes, operations and launches."""
