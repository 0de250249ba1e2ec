"""msprobe's own files of partners, as its users have them, for --mapping.

    layer_mapping  {class of a module: {name in it: name in the other world}}; TopLayer (or Cell) is the model itself.
                   Names may have dots, and those of functions stand as modules do: flash_attention_score
    cell_mapping   {path}.{class}: {path}.{class}, of parts of paths
    api_mapping    [{ms_api: Functional.abs, pt_api: Torch.abs, ms_args: [0, dim], pt_args: [1, dim], ms_outputs, …}]
    data_mapping   {operator}.{input|output|parameters}.{n}: the same of the other run

The first three say how MindSpore's names become PyTorch's. Source: documents and sources of msprobe 26.2
(core/compare/layer_mapping, mindspore/compare); they are read again here from scratch.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Union

from npucmp.model import Operator

Path = tuple[str, ...]
_TOP = ("TopLayer", "Cell")
_LISTS = {"args": "input", "outputs": "output", "output": "output", "parameters": "param", "parameters_grad": "grad"}


class Api(NamedTuple):
    """A function by the words of both worlds, or one operator by its name; `slots` by slot, and the roles of which
    they tell all that have partners."""

    name: str
    other: str
    slots: Mapping[str, str] = {}
    roles: tuple[str, ...] = ()


class Vendor(NamedTuple):
    """What such files say; nothing if there are none."""

    layers: Mapping[str, Mapping[str, str]] = {}
    cells: Mapping[str, str] = {}
    apis: Mapping[str, Api] = {}

    def fits(self, name: str) -> bool:
        """Whether it says something of an operator of this name."""
        words = name.split(".")
        return not self.layers.keys().isdisjoint(words) or (
            ".".join(words[:-2]) in self.apis or any(one.other == ".".join(words[:-2]) for one in self.apis.values())
        )

    def path(self, path: Path, classes: Mapping[Path, str]) -> Path:
        """Where a module sits in the other world."""
        for before, after in self.cells.items():
            found = _replaced((*path, classes.get(path, "")), before, after)
            if found is not None:
                return found
        return self._moved(path, classes)

    def called(self, around: Path, operator: Operator, classes: Mapping[Path, str]) -> Path:
        """The same of a function within a module, and what it is called there."""
        api = self.api(operator)
        moved = self._moved((*around, operator.op_type), classes)
        return (*moved[:-1], api.other.rpartition(".")[2]) if api is not None and api.other else moved

    def api(self, operator: Operator) -> Optional[Api]:
        if not self.apis:
            return None
        return self.apis.get(operator.name) or self.apis.get(operator.kind.rpartition(".")[0])

    def _moved(self, path: Path, classes: Mapping[Path, str]) -> Path:
        if not self.layers:
            return path
        found: list[str] = []
        at = 0
        while at < len(path):
            known = [self.layers.get(word, {}) for word in (_TOP if not at else (classes.get(path[:at], ""),))]
            keys = sorted((key for table in known for key in table), key=lambda key: -key.count("."))
            key = next((key for key in keys if path[at:][: key.count(".") + 1] == tuple(key.split("."))), path[at])
            to = next((table[key] for table in known if key in table), key)
            found += to.partition("(")[0].split(".")
            at += key.count(".") + 1 if key in keys else 1
        return tuple(found)


Names = Union[Mapping[str, str], Vendor]  # what a mapping is as a value


def _replaced(path: Path, before: str, after: str) -> Optional[Path]:
    """A path whose end or middle is replaced, without the class at its end."""
    text, key = f".{'.'.join(path)}.", f".{before}."
    return tuple(text.replace(key, f".{after}.", 1)[1:-1].split(".")[:-1]) if key in text else None


def vendor_of(table: Any) -> Optional[Vendor]:
    """Such a file by its form; None for another. A flat table is none of these: names of operators stand in it too."""
    if isinstance(table, dict) and table and all(isinstance(key, str) and _is_text(table[key]) for key in table):
        return Vendor(layers=table)
    listed = [table] if isinstance(table, dict) and "ms_api" in table else table
    if isinstance(listed, list) and listed and all(map(_is_api, listed)):
        return Vendor(apis={one["ms_api"]: _api(one) for one in listed})
    return None


def _is_text(table: Any) -> bool:
    return isinstance(table, dict) and all(isinstance(word, str) and word for item in table.items() for word in item)


def _is_api(one: Any) -> bool:
    return isinstance(one, dict) and all(isinstance(one.get(key), str) for key in ("ms_api", "pt_api"))


def _api(one: Mapping[str, Any]) -> Api:
    """Lists of unequal length say nothing; what is not in a list that is there has no partner."""
    slots: dict[str, str] = {}
    roles = []
    for word, role in _LISTS.items():
        here, there = one.get(f"ms_{word}"), one.get(f"pt_{word}")
        if isinstance(here, list) and isinstance(there, list) and len(here) == len(there) > 0:
            slots.update((f"{role}:{a}", f"{role}:{b}") for a, b in zip(here, there))
            roles.append(role)
    return Api(one["ms_api"], one["pt_api"], slots, tuple(roles))
