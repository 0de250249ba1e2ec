"""Bitwise comparison of repeated runs: where they begin to differ, which operators, and how."""
