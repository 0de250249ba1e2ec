"""Behind a root, inputs whose error has fallen below the limit count as being at the limit.

Evidence: else each operator behind a normalisation that shrinks the error would look born anew.
"""

from __future__ import annotations

from npucmp.localise.case import Rule

RULE = Rule(
    "fact",
    "behind_root",
    "once an error is about, inputs below their limit may carry as much as the limit",
    applies=lambda case: True,
)
