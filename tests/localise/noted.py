"""Networks by hand for notes: some of their tensors changed, and roots of them."""

from __future__ import annotations

import numpy as np

from npucmp.localise.evidence import reason
from npucmp.model import Cause, Finding, Root
from tests.localise.networks import SMALL, network, paired

NAN = np.float32([[1.0, np.nan], [2.0, 3.0]])
WHOLE = np.arange(20, dtype=np.int64)
TENSORS = {**SMALL, "n": NAN, "i": WHOLE, "j": WHOLE + 1, "h": np.float16([0.3, 0.7]), "l": np.float32([0.3, 0.7])}


def root(finding: Finding, *kinds: str) -> Root:
    evidence = tuple(reason(kind, "words") for kind in kinds)
    return Root(0, finding.pair, Cause.BORN, finding.pair.slot, "rel_l2", 1.0, 0.0, None, None, evidence)


def with_target(finding: Finding, **changes: object) -> Finding:
    return paired(finding, target=finding.pair.target._replace(**changes))


def measured(finding: Finding, **changes: object) -> Finding:
    return finding._replace(measurement=finding.measurement._replace(**changes))


def with_moments(finding: Finding, **changes: object) -> Finding:
    return measured(finding, moments=finding.measurement.moments._replace(**changes))


def rows(*lines: str, figures: bool = False, **changed) -> list[Finding]:
    """The tensors of a network, some of them changed by their letters."""
    found = network(*lines, figures=figures, **TENSORS)
    return [changed.get((one.pair.golden or one.pair.target).label, lambda same: same)(one) for one in found]


def alone(side: str):
    """The tensor without its partner."""
    return lambda one: paired(one, **{"target" if side == "golden" else "golden": None})
