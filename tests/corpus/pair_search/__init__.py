"""A search for false verdicts: generated pairs, and laws between a pair and what npucmp must say of it."""
