"""The files of a report: the names of tables of tensors, the types of their columns, and a part of a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

EARLIER = "earlier"  # the folder for a report that an error replaces
TENSORS = re.compile(r"(tensors(?:-\d+){0,3})\.(csv|parquet)")  # of all steps and ranks, or of one
# The columns of that table by type; all others, statistics and metrics, are floating.
WHOLE = frozenset(
    (
        "step rank order elements max_abs_index max_rel_index nonfinite_mismatch target_nan target_inf golden_nan "
        "golden_inf masked"
    ).split(" ")
)
TEXT = frozenset(
    (
        "op op_type phase slot verdict because matched_by target_op golden_op target_tensor golden_tensor target_dtype "
        "golden_dtype target_shape golden_shape target_layout golden_layout stack cause rule explained_by max_abs_at "
        "max_rel_at golden_slot relation match_reason estimator"
    ).split(" ")
)
BOOL = frozenset(("allclose",))


class FileRange(NamedTuple):
    """A part of a file, in bytes."""

    path: Path
    start: int
    stop: int
