"""Measurement of tensor pairs: Pair → Measurement. Tensors are read in blocks and added up; no verdict is made."""
