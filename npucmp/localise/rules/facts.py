"""Facts about tensors that the search uses beside limits, explanations and accusations; they have no bound of their
own.

background   the incoming error is unknown: errors seen so far are assumed (localise/intervals.py, seen_errors.py).
             Evidence: without it every uncaptured function of a clean bfloat16 run is a GAP
behind_root  behind a root, inputs whose error has fallen below the limit count as being at the limit. Evidence: else
             each operator behind a normalisation that shrinks the error would be BORN again
meaningless  uninitialised memory and a device's workspaces hold undefined content. Source: the documentation of
             torch.empty; reserve_space of FusedBatchNormV3 in TensorFlow's raw_ops
container    a module has no error of its own if an operator inside it has the error. Evidence: in a dump of level mix
             each fault would be named once per module around it
suspected    if only statistics exist, the first operator that exceeds the noise before it is suspected
             (localise/stat_test.py has the model and the evidence for its numbers)
"""

from __future__ import annotations

from npucmp.localise.rule_context import ErrorRule
from npucmp.localise.seen_errors import QUANTILE, RECENT_OPERATORS
from npucmp.model.roles import is_meaningless

FACTS = (
    ErrorRule(
        "fact",
        "background",
        f"for an input whose producer was not recorded, npucmp assumes the error that {100 * QUANTILE:g} % of the "
        f"earlier tensors do not exceed, or the largest error of the last {RECENT_OPERATORS} operators "
        "if that is larger",
        applies=lambda case: True,
    ),
    ErrorRule(
        "fact",
        "behind_root",
        "after a root cause, an input below its limit is counted as if its error were at the limit, so that later "
        "operators are not named again",
        applies=lambda case: True,
    ),
    ErrorRule(
        "fact",
        "meaningless",
        "uninitialised memory and workspaces differ between any two runs",
        applies=lambda case: is_meaningless(case.pair),
    ),
    ErrorRule(
        "fact", "container", "a module has no error of its own if an operator in it has it", applies=lambda case: True
    ),
    ErrorRule(
        "fact",
        "suspected",
        "with statistics only, the first operator that exceeds the upstream noise is suspected; earlier differences "
        "prove nothing",
        applies=lambda case: case.finding.measurement.moments is None,
    ),
)
