"""Bytes and folders → Run: readers (one kind of file each), graphs, and formats (one kind of dump each).

Knows no second run.
"""
