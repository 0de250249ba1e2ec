"""Find parameters that only one run keeps as numbers of a 16-bit type, although both record them as float32.

Loading a bfloat16 checkpoint into float32 has this effect, if operators cast up: each of them reads weights that differ
from the golden's by one rounding. The parameters differ, but the precision of the run does not, because its results are
rounded to float32. So the first parameter is a GAP, and the others follow from the same difference.

Nine of ten parameters that differ must be rounded so. The evidence of the GAP has their number. Parameters recorded in
a 16-bit type have the limit of that type.
"""

from __future__ import annotations

from typing import Optional, Sequence

from npucmp.localise.evidence import reason
from npucmp.localise.parameter_drift import SEVERAL
from npucmp.localise.rule_context import MANY, WHOLE
from npucmp.model import Evidence, Finding, Verdict
from npucmp.model.dtypes import lookup
from npucmp.model.moments import SHORT_BITS
from npucmp.model.roles import is_parameter

TYPES = dict(zip(SHORT_BITS, ("bfloat16", "float16")))
ROUNDED = 1.001  # times the round-off of the type: definition: one rounding to the nearest, with room for a float32


def rounded_parameters(findings: Sequence[Finding]) -> tuple[frozenset[int], list[Evidence]]:
    """Return the rows of parameters that are rounded alike, and the evidence; empty if they are fewer than nine of ten
    of the differing parameters, or fewer than SEVERAL."""
    differing = [one for one in findings if one.verdict is Verdict.DIVERGED and is_parameter(one.pair)]
    found: dict[tuple[str, str], set[int]] = {}
    for one in differing:
        if (key := _rounding(one)) is not None:
            found.setdefault(key, set()).add(one.row)
    (dtype, run), rows = max(found.items(), key=lambda item: len(item[1]), default=(("", ""), set[int]()))
    if len(rows) < max(SEVERAL, WHOLE * len(differing)):
        return frozenset(), []
    number = f"all {len(rows)}" if len(rows) == len(differing) else f"{len(rows)} of {len(differing)}"
    words = "{number} parameters that differ are rounded to {dtype} in the {run} only, which stores them in that type"
    return frozenset(rows), [reason("rounded parameters", words, number=number, dtype=dtype, run=run)]


def _rounding(finding: Finding) -> Optional[tuple[str, str]]:
    """The 16-bit type to which one side is rounded, and that run; None for other differences."""
    moments = finding.measurement.moments
    if moments is None or moments.mismatched or moments.compared < MANY:
        return None
    for run, side, other in (("target", moments.target, moments.golden), ("golden", moments.golden, moments.target)):
        for bits, name in TYPES.items():
            dtype = lookup(name)
            if (
                dtype is not None
                and 0 < side.bits <= bits < other.bits
                and moments.max_rel <= ROUNDED * dtype.round_off
            ):
                return name, run
    return None
