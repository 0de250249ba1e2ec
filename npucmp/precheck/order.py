"""All rows, in the order in which they are told; a row may see those before it."""

from __future__ import annotations

from npucmp.precheck import arguments, heads, inputs, network, precision, training, weights
from npucmp.precheck.row import Row

ROWS: "tuple[Row, ...]" = (
    *heads.ROWS,
    *network.ROWS,
    *arguments.ROWS,
    *inputs.ROWS,
    *weights.ROWS,
    *precision.ROWS,
    *training.ROWS,
)
