"""Curves of training runs: read from whatever logged them, held against each other, judged by themselves."""
