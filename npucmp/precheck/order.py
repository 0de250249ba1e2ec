"""All rows, in the order in which they are told."""

from __future__ import annotations

from npucmp.precheck import arguments, heads, inputs, network, precision
from npucmp.precheck.row import Row

ROWS: "tuple[Row, ...]" = (*heads.ROWS, *network.ROWS, *inputs.ROWS, *arguments.ROWS, *precision.ROWS)
