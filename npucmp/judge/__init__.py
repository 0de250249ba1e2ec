"""Measurement → Finding: one tensor at a time, held against the precision that its runs worked in."""
