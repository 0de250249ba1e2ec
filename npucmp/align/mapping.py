"""Matcher of first resort: the names a user wrote down, target name → golden name.

A file is YAML or TOML with one flat table, or CSV with two columns (a header row `target,golden` may stand).
"""

from __future__ import annotations

import csv
from collections import defaultdict, deque
from pathlib import Path
from typing import Any, Mapping, Sequence

from npucmp.dump.readers.text import read_text
from npucmp.dump.readers.toml import load_toml
from npucmp.errors import MissingExtra, UsageError
from npucmp.model import Match, Operator

_LARGEST = 16 * 2**20  # bytes; also what keeps a YAML alias bomb small


def match(target: Sequence[Operator], golden: Sequence[Operator], names: Mapping[str, str]) -> list[Match]:
    """Operators whose names the mapping pairs, executions in order. A name that no run holds pairs nothing."""
    waiting: dict[str, deque[Operator]] = defaultdict(deque)
    for operator in golden:
        waiting[operator.name].append(operator)
    matches = []
    for operator in target:
        queue = waiting.get(names.get(operator.name, "\0"))
        if queue:
            matches.append(Match(operator, queue.popleft(), "mapping", 1.0))
    return matches


def load(path: Path) -> dict[str, str]:
    """Reads a mapping file. Raises DumpError if it cannot be read, UsageError if it is no flat table of names."""
    text = read_text(path, _LARGEST)
    suffix = path.suffix.lower()
    table: Any = (
        _csv(path, text) if suffix == ".csv" else load_toml(path, text) if suffix == ".toml" else _yaml(path, text)
    )
    if not isinstance(table, dict) or not all(isinstance(n, str) for item in table.items() for n in item):
        raise UsageError(f"{path}: a mapping is one flat table, target name: golden name")
    return table


def _csv(path: Path, text: str) -> dict[str, str]:
    try:
        rows = [row for row in csv.reader(text.splitlines()) if len(row) >= 2]
    except csv.Error as error:
        raise UsageError(f"{path}: not CSV: {error}") from None
    return {
        row[0].strip(): row[1].strip() for row in rows if [cell.strip() for cell in row[:2]] != ["target", "golden"]
    }


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise MissingExtra("PyYAML", f"the YAML mapping {path}") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
