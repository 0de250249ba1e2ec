"""The workflows, one per command: each takes paths and options and returns a result.

The library exports them, and the commands call them.
"""
