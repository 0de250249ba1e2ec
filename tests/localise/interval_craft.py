"""Craft operators whose tensors have known errors, and the intervals of a search that visited none of them."""

from __future__ import annotations

import math

import numpy as np

from npucmp.localise.intervals import reads_of
from npucmp.localise.parameter_drift import Updates
from npucmp.localise.rules import Rulebook
from npucmp.localise.search import RootSearch
from npucmp.localise.sources import learn_source
from npucmp.localise.sweep import TensorSource
from npucmp.model import Statistics, Verdict
from tests.localise.rules.craft import case
from tests.localise.stat_craft import HALF, findings_of, of, row

LIMIT = 8 * HALF


def known(slot, error, size=4.0, verdict=Verdict.MATCH, **more):
    """A tensor of a known error; `size` identifies its content."""
    judged = {"error": error, "limit": LIMIT, "verdict": verdict, **more.pop("judged", {})}
    more = {"golden": of(size), "target": Statistics(), **more}  # no figure shows a shift
    return row(slot, known={"bound": None}, judged=judged, **more)


def unknown(slot, size=4.0, **more):
    return known(slot, None, size, **{"verdict": Verdict.UNREADABLE, **more})


def operand(slot, rms, shape=(64, 64), size=4.0, error=0.1):
    count = math.prod(shape)
    return known(slot, error, size, golden=Statistics(size, -size, 0.0, rms * math.sqrt(count)), shape=shape)


def is_interval(found, expected) -> bool:
    """Whether two intervals have the same source and, but for rounding, the same ends."""
    ends = zip(found[:2], expected[:2])
    return found.source == expected.source and all(math.isclose(*both, rel_tol=1e-6) for both in ends)


class Search:
    """The intervals of operators, of which none was visited."""

    def __init__(self, *operators, by_round_off=True, rules=(), updates=None):
        self.walk = RootSearch(findings_of(*operators), by_round_off, Rulebook(rules), updates or Updates())
        self.nodes, self.node = self.walk.nodes, self.walk.nodes[-1]

    def reads(self):
        return reads_of(self.walk, self.node)

    def taint(self, finding, **more):
        learn_source(self.walk, TensorSource(finding, True, **more))

    def see(self, *errors):
        """Errors of operators elsewhere, of which the last nine are equal."""
        for error in [*errors, *errors[-1:] * 9]:
            x = np.linspace(1.0, 2.0, 16)
            node = case("sin", [], (x * (1 + error), x)).node
            self.walk.passed.append((node, ()))
