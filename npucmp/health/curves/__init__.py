"""Curves of training runs: read logs, compare curves of two runs, judge a single curve."""
