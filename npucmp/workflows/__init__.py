"""The workflows, one per command, each a page of code: paths and options in, a result out.

The library exports them, and the commands call them.
"""
