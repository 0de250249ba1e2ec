"""Small faults planted in the code of npucmp, and the tests that notice them: python -m tests.mutants."""
