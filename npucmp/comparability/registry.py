"""All rows in the order of the report. A row may use the answers of earlier rows."""

from __future__ import annotations

from npucmp.comparability import (
    code,
    data_distribution,
    health,
    inputs,
    metadata,
    network,
    settings,
    training,
    weights,
)
from npucmp.comparability.check_item import CheckItem

ROWS: tuple[CheckItem, ...] = (
    *metadata.ROWS,
    *network.ROWS,
    *network.ARGUMENTS_ROWS,
    *inputs.ROWS,
    *data_distribution.ROWS,
    *weights.ROWS,
    *network.PRECISION_ROWS,
    *training.ROWS,
    *code.ROWS,
    *health.ROWS,
    *settings.ROWS,
    *training.CURVES_ROWS,
)
NAMES = tuple(row.name for row in ROWS)
