"""Read a file of curves into a Log: tables, JSON, text logs, event files. Content decides the format, not the name.

JSON lines            one object per line
JSON                  an object with `log_history` (trainer_state.json), a list of objects or numbers, lists by name
table                 CSV, TSV, or with ; or |: column names in the first line, optionally with a step
monitor               tables of msprobe's monitor: the norm over all tensors by step
text                  other lines with numbers after names: text.py
events                events.py
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from os import PathLike
from pathlib import Path
from typing import Any, Iterator, Optional

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.text import read_bytes
from npucmp.health.curves.curve import Log
from npucmp.health.curves.records import Record, is_events, log_of, read_events, records_of_text

DELIMITERS = ",\t;|"
LONGEST = 40  # characters of a number


def read_log(path: str | PathLike[str], context: ReadContext = ANYWHERE) -> Log:
    """Return the curves of a file or folder. Raise DumpError if it is unreadable or has none."""
    where = Path(path)
    if is_events(where):
        return read_events(where, context)
    text = read_bytes(where, "table_bytes", context).decode("utf-8-sig", "replace")
    head = text.lstrip()[:1]
    if head in ("{", "["):
        records = _of_json(text)
        if records is not None:
            return log_of(str(path), records)
    lines = text.splitlines()
    table = _of_table(lines)
    return log_of(str(path), records_of_text(lines) if table is None else table)


def _of_json(text: str) -> Optional[list[Record]]:
    """Records of a JSON document or of JSON lines; None if the text is neither."""
    try:
        return _records(_parse_json(text))
    except ValueError:
        pass
    found: list[Record] = []
    lines = [line for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        try:
            found += _records([_parse_json(line)])
        except ValueError:  # the last line of a file that is still being written
            if number < max(1, len(lines) - 1):
                return None
    return found


def _parse_json(text: str) -> Any:
    """Parse JSON; raise ValueError for invalid text. Integers with thousands of digits become infinite."""
    try:
        return json.loads(text, parse_int=lambda digits: float(digits))
    except RecursionError:
        raise ValueError("nested too deep") from None


def _records(tree: Any) -> list[Record]:
    if isinstance(tree, dict):
        if isinstance(tree.get("log_history"), list):
            return _records(tree["log_history"])
        lists = {str(name): column for name, column in tree.items() if isinstance(column, list)}
        if lists:
            rows: list[dict[str, Any]] = [{} for _ in range(max(map(len, lists.values())))]
            for name, column in lists.items():
                for row, value in zip(rows, column):
                    row[name] = value
            return [*map(_numbers, rows)]
        return [_numbers(tree)]
    if isinstance(tree, list):
        return [_numbers(one if isinstance(one, dict) else {"value": one}) for one in tree]
    raise ValueError("neither an object nor a list")


def _numbers(one: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of an object; those of nested objects have both names, joined by a slash."""
    found: dict[str, float] = {}
    for name, value in one.items():
        if isinstance(value, dict) and not prefix:
            found.update(_numbers(value, f"{name}/"))
        number = _number(value)
        if number is not None:
            found[f"{prefix}{name}"] = number
    return found


def _number(value: Any) -> Optional[float]:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return value
    if isinstance(value, str) and len(value) <= LONGEST:
        try:
            return float(value)
        except ValueError:
            pass
    return None


def _of_table(lines: list[str]) -> Optional[list[Record]]:
    """Records of a table; None if the lines are not a table. The first line has the names of the columns, unless it
    consists of one or two numbers."""
    lines = [line for line in lines if line.strip()]
    if not lines or any(records_of_text(lines[:1])):
        return None
    delimiter = max(DELIMITERS, key=lines[0].count)
    try:
        rows = [*csv.reader(lines, delimiter=delimiter)] if delimiter in lines[0] else [line.split() for line in lines]
    except csv.Error:
        return None
    names = [name.strip() for name in rows[0]]
    if all(_number(name) is not None for name in names) and len(names) <= 2:
        names = ["step", "value"][-len(names) :]
    else:
        rows = rows[1:]
    fitting = [dict(zip(names, map(str.strip, row))) for row in rows if len(row) == len(names)]
    if len({*names}) < len(names) or len(fitting) <= len(rows) / 2:
        return None
    if {"vpp_stage", "step"} <= {*names}:
        return [*_of_monitor(fitting)]
    return [_numbers(row) for row in fitting]


def _of_monitor(rows: list[dict[str, str]]) -> Iterator[Record]:
    """The norm over all tensors that the monitor's table lists for a step: the root of the sum of squares."""
    last: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        name = " ".join(row.get(key, "") for key in ("vpp_stage", "name", "module_name", "scope", "micro_step"))
        norm = _number(row.get("norm", ""))
        if norm is not None:
            last[row["step"]][name] = norm
    for step, norms in last.items():
        number = _number(step)
        if number is not None:
            yield {"step": number, "norm": math.sqrt(sum(norm * norm for norm in norms.values()))}
