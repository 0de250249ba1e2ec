"""Matcher by a user's mapping, target name → golden name. It precedes all other matchers.

A file is YAML or TOML with one flat table, or CSV with two columns (and an optional header row `target,golden`). It may
also be a mapping file of msprobe; align/msprobe_mapping.py describes their forms. In a flat table, a name
that is not an operator is the name of a tensor (data_mapping) or a part of module paths (cell_mapping). If npucmp wrote
the file (mapping.yaml, with the entry `npucmp: content`), values align the runs, and the table anchors them.

The entry `relations` of YAML and TOML is a table of its own: how tensors of the target make the golden's
(relations/stated_view.py). In CSV a third column has the relation of a row.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict, deque
from functools import lru_cache
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from npucmp.align.msprobe_mapping import Api, MsprobeMapping, Names, vendor_of
from npucmp.dump.readers.names import parse_tensor_name
from npucmp.dump.readers.text import load_toml, read_text
from npucmp.errors import MissingExtra, UsageError
from npucmp.model import Match, Operator
from npucmp.model.finding import FOUND_BY_CONTENT

_LARGEST = 16 * 2**20  # bytes: work: also limits a YAML alias bomb


def match(target: Sequence[Operator], golden: Sequence[Operator], names: Mapping[str, str]) -> list[Match]:
    """Match operators whose names the mapping pairs, executions in order. A name that no run has matches nothing."""
    waiting: dict[str, deque[Operator]] = defaultdict(deque)
    for operator in golden:
        waiting[operator.name].append(operator)
    matches = []
    for operator in target:
        queue = waiting.get(names.get(operator.name, "\0"))
        if queue:
            matches.append(Match(operator, queue.popleft(), "mapping", 1.0))
    return matches


class OperatorNames:
    """The names of operators, and which entries of a flat table refer to them."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = {*names}
        self._words = {word for name in self.names for word in name.split(".")}

    def has(self, name: str) -> bool:
        """Return whether a name refers to an operator, one of its tensors or a part of its path."""
        return (
            name in self.names or parse_tensor_name(name, of_msprobe=True).operator in self.names or self.has_part(name)
        )

    def has_part(self, name: str) -> bool:
        """Return whether a name is part of a module path."""
        return self._words.issuperset(name.split(".")) and any(f".{name}." in one for one in self.names)


def split_mapping(names: Names, operators: Sequence[Operator]) -> tuple[Mapping[str, str], MsprobeMapping]:
    """Split a mapping into names of operators and the entries of a vendor's file. `operators` are the target's."""
    if isinstance(names, MsprobeMapping):
        return {}, names
    runs = OperatorNames(operator.name for operator in operators)
    known = runs.names
    if known.issuperset(names):
        return names, MsprobeMapping()
    names = {here: there for here, there in names.items() if here not in FOUND_BY_CONTENT}
    whole = {here: there for here, there in names.items() if here in known}
    slots: dict[str, dict[str, str]] = defaultdict(dict)
    cells = {}
    for here, there in names.items():
        one, other = parse_tensor_name(here, of_msprobe=True), parse_tensor_name(there, of_msprobe=True)
        if here in known:
            continue
        if one.operator in known:
            whole[one.operator] = other.operator
            slots[one.operator][one.slot] = other.slot
        elif runs.has_part(here):
            cells[here] = there
    apis = {name: Api(name, "", by_slot) for name, by_slot in slots.items() if any(a != b for a, b in by_slot.items())}
    return whole, MsprobeMapping(cells=cells, apis=apis)


_VIEW = re.compile(r"\w\s*\(.*\)\s*$")  # a step with arguments; other words of a third column are a comment
RELATIONS = "relations"  # the entry of a mapping with views of tensors


def load(path: Path) -> Names:
    """Read the names of a mapping file. Raises DumpError if it cannot be read, UsageError if its form is unknown."""
    names = _table(path)
    if isinstance(names, dict):
        names = {name: other for name, other in names.items() if name != RELATIONS}
    vendor = vendor_of(names) if names else None
    if vendor is not None:
        return vendor
    if not isinstance(names, dict) or not _is_flat(names):
        raise UsageError(
            f"{path}: a mapping is one flat table, target name: golden name, or a layer, cell, api or data mapping of "
            "msprobe"
        )
    return names


def load_relations(path: Path) -> dict[str, str]:
    """Read the relations of a mapping file: pattern of "operator slot" → view; empty without any. Raises as `load`."""
    return relations_in(_table(path), str(path))


def relations_in(table: Any, where: str) -> dict[str, str]:
    """Return the relations in a mapping. Raises UsageError if they are no flat table."""
    found = table.get(RELATIONS, {}) if isinstance(table, Mapping) else {}
    if not isinstance(found, Mapping) or not _is_flat(found):
        raise UsageError(f'{where}: relations is a table, "operator slot": "permute(0,3,1,2)"')
    return {**found}


def _is_flat(table: Mapping[Any, Any]) -> bool:
    return all(isinstance(name, str) for item in table.items() for name in item)


def _table(path: Path) -> Any:
    return _parsed(path, read_text(path, _LARGEST))


@lru_cache(maxsize=1)  # names and relations are asked for several times
def _parsed(path: Path, text: str) -> Any:
    suffix = path.suffix.lower()
    return _csv(path, text) if suffix == ".csv" else load_toml(path, text) if suffix == ".toml" else _yaml(path, text)


def _csv(path: Path, text: str) -> dict[str, Any]:
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if len(row) >= 2]
    except csv.Error as error:
        raise UsageError(f"{path}: not CSV: {error}") from None
    table: dict[str, Any] = {}
    relations: dict[str, str] = {}
    for name, other, *more in rows:
        if (name, other) == ("target", "golden"):
            continue
        if table.setdefault(name, other) != other:
            raise UsageError(f"{path}: {name!r:.100} occurs twice, for {table[name]!r:.100} and {other!r:.100}")
        if more and _VIEW.search(more[0]):
            relations[name] = more[0]
    return {**table, RELATIONS: relations} if relations else table


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise MissingExtra("PyYAML", f"the YAML mapping {path}") from None

    class Loader(yaml.SafeLoader):
        """PyYAML's safe loader, which rejects a duplicate key instead of using the last value."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [one.value for one, _ in node.value if isinstance(one, yaml.ScalarNode) and one.value != "<<"]
            if twice := next((key for key, count in Counter(keys).items() if count > 1), None):
                raise UsageError(f"{path}: {twice!r:.100} occurs twice in one table")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
