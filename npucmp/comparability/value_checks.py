"""Values of tensors, from an earlier pass or read again."""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.dump.context import ReadContext
from npucmp.health.facts import Tensor
from npucmp.run_differences.data_relation import Array
from npucmp.run_differences.tensor_values import readable_values


def known_values(one: Tensor, context: ReadContext) -> Optional[Array]:
    """Return the values kept by an earlier pass; otherwise read them, bounded. None if they are not readable."""
    values = one.found.get("whole")
    if values is not None:
        return np.asarray(values)
    return readable_values(one.ref, context)
