"""Check whether two runs are the same experiment: rows compare their setup before any operator is compared.

check_item.py defines a row. Each family of rows has a file; registry.py lists all rows in the order of the report. A
row reads only a `Both` (run_pair.py), on demand. If a row fails, only its own answer becomes unknown.
"""
