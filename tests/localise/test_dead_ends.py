"""Operators of the target alone whose outputs no operator reads, and tensors that are read in slices."""

import numpy as np

from npucmp.localise.golden_graph import dead_ends
from npucmp.localise.golden_rows import GoldenRows
from npucmp.model import Finding, Measurement
from tests.localise.networks import SMALL, network, values_of

WHOLE = (0.05 * np.random.default_rng(3).standard_normal((4, 30))).astype(np.float32)
THIRDS = {letter: WHOLE[:, at : at + 10] for letter, at in zip("QKV", (0, 10, 20))}
TERMS = {letter: values_of(letter) / 32 for letter in "gh"}
SUMMED = {**TERMS, "f": TERMS["g"] + TERMS["h"]}
VALUES = {**SMALL, **THIRDS, **SUMMED, "W": WHOLE, "Z": np.zeros((4, 30), np.float32), "z": np.zeros((4, 10), "f")}


def made(*lines: str) -> list[Finding]:
    return network(*lines, **VALUES)


def places(findings: list[Finding], again: frozenset[int] = frozenset()) -> list[int]:
    return [*dead_ends(findings, GoldenRows(findings).columns, again)]


LINES = ["exp.backward x -> y", "target relu.backward y -> g", "target tanh.backward y -> h", "exp.backward f -> q"]
TOTALS = {letter: float(values.astype(np.float64).sum()) for letter, values in TERMS.items()}


def with_total(findings: list[Finding], total: float) -> list[Finding]:
    """The findings with another sum of the elements of f."""
    moments = findings[6].measurement.moments
    moved = moments._replace(target=moments.target._replace(total=total))
    return [*findings[:6], findings[6]._replace(measurement=Measurement(findings[6].pair, moved)), *findings[7:]]


def test_no_term_of_a_sum_is_unknown_or_zero():
    findings = with_total(made(*LINES), TOTALS["g"])
    findings[5] = findings[5]._replace(measurement=Measurement(findings[5].pair))
    assert places(findings) == [1, 2]
    noughts = [one.replace(" g", " z").replace(" h", " z").replace(" f", " z") for one in LINES]
    assert places(made(*noughts)) == [1, 2]
