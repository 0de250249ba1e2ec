"""Pair the parameters of two checkpoints of any convention: names, then structure, then free numbers, then pairs.

Nothing flows back: no relation is chosen by the tensor that it would excuse. docs/arrangements.md has the four layers.
"""
