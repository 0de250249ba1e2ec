"""The relation that the user states in a mapping."""
