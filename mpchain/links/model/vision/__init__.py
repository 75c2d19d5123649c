"""Networks for image classification, with their published parameters."""
