"""Check whether two runs are the same experiment: rows compare their setup before any operator is compared.

row.py defines a row. Each family of rows has a file; order.py lists all rows in the order of the report. A row reads
only a `Both` (both.py), on demand. If a row fails, only its own answer becomes unknown.
"""
