"""Are two runs the same experiment? Rows that hold what they were given against each other, before any operator is.

rows.py says what a row is; each family has a file, and ROWS in order.py names all of them as they are told. A row sees
a `Both` (both.py) alone: it reads what it needs, and trouble with it is its own.
"""
