"""Pair → Measurement: opens tensors, walks them in blocks, adds up. Numbers, no opinion."""
