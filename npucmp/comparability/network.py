"""Rows of the network: its operators, their order, the shapes of their outputs."""

from __future__ import annotations

from npucmp.comparability.check_item import CheckItem
from npucmp.run_differences.operators import operators, shapes

ROWS = (
    CheckItem("network.operators", "error", "operators by type, name and order",
        "compare model code and versions of both", operators),
    CheckItem("network.shapes", "error", "shapes of outputs",
        "run both with the same batch size, length and configuration", shapes),
)  # fmt: skip
