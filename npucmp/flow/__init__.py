"""Data flow of a comparison: which tensors of one run are the same tensor, and which operator produced each input."""
