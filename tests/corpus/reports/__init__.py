"""Cases of strangers: small dumps re-created from public reports with a known cause, and what an honest answer says.

cases/ holds the dumps, an archive each; `../shared/data/reports/given` has the larger ones. kinds/ draws further cases
of each kind: other networks, formats and values. `python -m tests.corpus.reports` says how to run both.
"""
