"""Rows of arguments, and the drop rate of a dropout."""

from __future__ import annotations

from typing import Optional

from npucmp.comparability.check_item import CheckItem
from npucmp.model import Operator
from npucmp.model.arguments import named_arguments
from npucmp.model.optypes import op_type_of
from npucmp.run_differences.arguments import arguments, reduction


def rate_of(operator: Operator) -> Optional[float]:
    """The drop rate of a dropout, 0 if it is off. None for other operators, and if the arguments are not recorded."""
    if operator.phase == "backward" or operator.path or not op_type_of(operator).has("random"):
        return None
    given = named_arguments(operator)
    rate = given.get("p", given.get("dropout_p"))
    if not isinstance(rate, (int, float)) or "training" not in given:
        return None
    return float(rate) if given["training"] else 0.0


ROWS = (
    CheckItem("network.arguments", "error", "scalar arguments of matched operators",
        "give both the same arguments; defaults differ between frameworks", arguments),
    CheckItem("loss.reduction", "error", "reduction of the loss", "give both losses the same arguments", reduction),
)  # fmt: skip
