"""Read the settings of a user that replace default limits: tolerance tables, closeness, noise of repeated runs. The
size of each file is bounded."""

from __future__ import annotations

import csv
import difflib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping

from npucmp.dump.readers.text import read_text
from npucmp.errors import UsageError
from npucmp.measure import metrics
from npucmp.model import Tolerance
from npucmp.model.dtypes import DTYPES, canonical, lookup

LARGEST_TABLE = 2**20  # bytes of a tolerance file: work
LARGEST_NOISE = 2**28  # bytes of a noise.csv: work: one row per tensor
COLUMNS = ("metric", "limit", "dtype", "op_type", "why")
OF_ERRORS = {"verdict", "cause"}  # columns of tables of errors, which --noise must not read
CODE = re.compile(r"\\x([0-9a-f]{2})|\\u(e00[0-7][0-9a-f]|[0-9a-f]{4})")  # how reports show invisible characters


@dataclass(frozen=True)
class Tolerances:
    """The settings that decide a verdict. `table` replaces the default limits of the tensors to which a row applies;
    `closeness` (a user's rtol or atol) replaces all default limits."""

    table: tuple[Tolerance, ...] = ()
    closeness: bool = False
    trust_statistics: bool = False
    noise: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (operator, slot) → rel_l2 between reruns

    @property
    def by_round_off(self) -> bool:
        """Whether the default limits are in force; only these compare errors with the errors of the inputs."""
        return not self.table and not self.closeness


def load_tolerances(path: Path) -> tuple[Tolerance, ...]:
    """Read the rows of a tolerance file; the first row that applies to a tensor decides.

    CSV with the columns metric, limit, dtype, op_type, why; or TOML with [[tolerance]] tables of these keys. Raises
    DumpError if the file cannot be read, UsageError for a row that cannot be used.
    """
    text = read_text(path, LARGEST_TABLE)
    if path.suffix.lower() == ".toml":
        from npucmp.dump.readers.toml import load_toml

        found = load_toml(path, text).get("tolerance")
        rows = found if isinstance(found, list) else []
    else:
        try:
            rows = list(csv.DictReader(text.splitlines()))
        except csv.Error as error:
            raise UsageError(f"{path}: not CSV: {error}") from None
    if not rows:
        raise UsageError(f"{path}: contains no tolerance; pass a CSV with the columns {','.join(COLUMNS)}")
    if path.suffix.lower() != ".toml" and "limit" not in rows[0]:
        raise UsageError(
            f"{path}: not a table of tolerances: it has no column limit; pass a CSV with the columns "
            f'{",".join(COLUMNS)}, for example "rel_l2,1e-3,float16,softmax,measured"'
        )
    return tuple(_tolerance(path, number, row) for number, row in enumerate(rows, 1))


def load_noise(path: Path) -> dict[tuple[str, str], float]:
    """Read a noise.csv that rerun-diff wrote: (operator, slot) → rel_l2.

    Raises DumpError if the file cannot be read, UsageError if it is not such a table.
    """
    try:
        rows = list(csv.DictReader(read_text(path, LARGEST_NOISE).splitlines()))
    except csv.Error as error:
        raise UsageError(f"{path}: not CSV: {error}") from None
    if rows and rows[0].keys() & OF_ERRORS:  # a table of errors would excuse every error
        raise UsageError(
            f"{path}: is a table of errors; --noise requires the noise.csv that npucmp rerun-diff -o writes"
        )
    if not rows or not {"op", "slot", "rel_l2"} <= rows[0].keys():
        raise UsageError(f"{path}: not a noise.csv with the columns op, slot, rel_l2; npucmp rerun-diff -o writes one")
    found: dict[tuple[str, str], float] = {}
    try:
        for row in rows:
            noise = float(row["rel_l2"])
            if math.isfinite(noise):  # a NaN in one run only is not noise
                found.update({(op, slot): noise for op in _spellings(row["op"]) for slot in _spellings(row["slot"])})
    except (TypeError, ValueError):
        raise UsageError(f"{path}: a row has no name, or its rel_l2 is not a number") from None
    return found


def _spellings(cell: str) -> set[str]:
    r"""Return the possible names behind a cell: a leading `'` may protect a spreadsheet, \xNN may encode a control
    character."""
    names = {cell, cell[1:]} if cell.startswith("'") else {cell}
    return names | {CODE.sub(lambda found: chr(int(found[1] or found[2], 16)), name) for name in names}


def _tolerance(path: Path, number: int, row: object) -> Tolerance:
    cells = row if isinstance(row, dict) else {}
    name = str(cells.get("metric") or "rel_l2")
    known = [metric.name for metric in metrics.METRICS]
    if name not in known:
        raise UsageError(f"{path}: row {number}: no metric {name!r}", difflib.get_close_matches(name, known))
    try:
        limit = float(cells.get("limit", ""))
    except (TypeError, ValueError):
        limit = math.nan
    if math.isnan(limit):
        raise UsageError(f"{path}: row {number}: limit {cells.get('limit')!r:.60} is not a number")
    words = {key: str(cells.get(key) or "") for key in ("op_type", "why")}
    dtype = canonical(str(cells.get("dtype") or ""))
    if dtype and lookup(dtype) is None:
        raise UsageError(f"{path}: row {number}: no dtype {dtype!r:.60}", difflib.get_close_matches(dtype, DTYPES))
    return Tolerance(name, limit, dtype, **words)
