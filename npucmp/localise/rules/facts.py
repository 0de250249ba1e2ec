"""What the search holds of tensors beside limits, explanations and accusations: facts without a figure of their own.

background   what came in is not known: what was seen so far stands for it (localise/intervals.py, seen_errors.py).
             Evidence: without it every uncaptured function of a clean bfloat16 run is a GAP
behind_root  behind a root, inputs whose error has fallen below the limit count as being at the limit. Evidence: else
             each operator behind a normalisation that shrinks the error would look born anew
meaningless  uninitialised memory and a device's workspaces hold what nobody promised. Source: the documentation of
             torch.empty; reserve_space of FusedBatchNormV3 in TensorFlow's raw_ops
container    a module bears no error of its own when an operator inside it has it. Evidence: in a dump of level mix
             each fault would be named once per module around it
suspected    where statistics are all there is, the first operator that stands out of the noise before it is
             suspected (localise/stat_test.py has the model and the evidence for its numbers)
"""

from __future__ import annotations

from npucmp.localise.rule_context import ErrorRule
from npucmp.localise.seen_errors import QUANTILE
from npucmp.model.roles import is_meaningless

FACTS = (
    ErrorRule(
        "fact",
        "background",
        f"an input of unknown origin has the error that {100 * QUANTILE:g} % of what was seen do not exceed, or the "
        "largest just before",
        applies=lambda case: True,
    ),
    ErrorRule(
        "fact",
        "behind_root",
        "once an error is about, inputs below their limit may carry as much as the limit",
        applies=lambda case: True,
    ),
    ErrorRule(
        "fact",
        "meaningless",
        "uninitialised memory and workspaces differ between any two runs",
        applies=lambda case: is_meaningless(case.pair),
    ),
    ErrorRule("fact", "container", "a module has the error of the operator inside it", applies=lambda case: True),
    ErrorRule(
        "fact",
        "suspected",
        "by statistics alone, the first operator out of the noise before it is suspected, and nothing before it proven",
        applies=lambda case: case.finding.measurement.moments is None,
    ),
)
