"""Repeated runs, bit for bit: where they begin to differ, which operators, and how."""
