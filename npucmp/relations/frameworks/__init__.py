"""Frameworks: operators of runs whose names differ, by the names of modules (by_name) or by their values (contents)."""
