"""The edges of a comparison: which tensors of one run are the same tensor, and who produced what is read."""
