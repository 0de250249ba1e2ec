"""Readers (one kind of file each), graphs and formats (one kind of dump each): they turn files and folders into Runs.

Nothing in this package knows a second run.
"""
