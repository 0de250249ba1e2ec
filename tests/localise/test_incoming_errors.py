"""The largest error that an operator may have read, for one of its outputs, and that of an input before it is read."""

from npucmp.localise.intervals import WORDS


def test_each_interval_without_a_measurement_has_words():
    kinds = {"unknown producer": "90 %", "saved": "saved", "parameter": "parameter", "left of a sum": "cancel"}
    assert all(word in WORDS[kind] and "{high}" in WORDS[kind] for kind, word in kinds.items())
