"""msprobe's own mapping files for --mapping.

    layer_mapping  {class of a module: {name in it: name in the other framework}}; TopLayer (or Cell) is the model.
                   Names may have dots, and names of functions are used like those of modules: flash_attention_score
    cell_mapping   {path}.{class}: {path}.{class}, of parts of paths
    api_mapping    [{ms_api: Functional.abs, pt_api: Torch.abs, ms_args: [0, dim], pt_args: [1, dim], ms_outputs, …}]
    data_mapping   {operator}.{input|output|parameters}.{n}: the same of the other run

The first three translate MindSpore's names to PyTorch's. Source: documents and sources of msprobe 26.2
(core/compare/layer_mapping, mindspore/compare); this is an independent implementation.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Union

from npucmp.model import Operator

Path = tuple[str, ...]
_TOP = ("TopLayer", "Cell")
_LISTS = {"args": "input", "outputs": "output", "output": "output", "parameters": "param", "parameters_grad": "grad"}


class Api(NamedTuple):
    """A function in the terms of both frameworks, or one operator by its name: `slots` by slot, and the `roles` for
    which the file lists all tensors with partners."""

    name: str
    other: str
    slots: Mapping[str, str] = {}
    roles: tuple[str, ...] = ()


class MsprobeMapping(NamedTuple):
    """The contents of such files; empty without one."""

    layers: Mapping[str, Mapping[str, str]] = {}
    cells: Mapping[str, str] = {}
    apis: Mapping[str, Api] = {}

    def fits(self, name: str) -> bool:
        """Return whether the file has an entry for an operator of this name."""
        words = name.split(".")
        return not self.layers.keys().isdisjoint(words) or (
            ".".join(words[:-2]) in self.apis or any(one.other == ".".join(words[:-2]) for one in self.apis.values())
        )

    def path(self, path: Path, classes: Mapping[Path, str]) -> Path:
        """The path of a module in the other framework."""
        for before, after in self.cells.items():
            found = _replace_part((*path, classes.get(path, "")), before, after)
            if found is not None:
                return found
        return self._mapped_path(path, classes)

    def function_path(self, around: Path, operator: Operator, classes: Mapping[Path, str]) -> Path:
        """The path of a function within a module in the other framework, and its name there."""
        api = self.api(operator)
        moved = self._mapped_path((*around, operator.op_type), classes)
        return (*moved[:-1], api.other.rpartition(".")[2]) if api is not None and api.other else moved

    def api(self, operator: Operator) -> Optional[Api]:
        return self.apis.get(operator.name) or self.apis.get(operator.kind.rpartition(".")[0])

    def _mapped_path(self, path: Path, classes: Mapping[Path, str]) -> Path:
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


Names = Union[Mapping[str, str], MsprobeMapping]  # the forms of a mapping


def _replace_part(path: Path, before: str, after: str) -> Optional[Path]:
    """A path with its end or middle replaced, without the class at its end."""
    text, key = f".{'.'.join(path)}.", f".{before}."
    return tuple(text.replace(key, f".{after}.", 1)[1:-1].split(".")[:-1]) if key in text else None


def vendor_of(table: Any) -> Optional[MsprobeMapping]:
    """Recognise such a file by its form; None for any other. A flat table is not one of them: it may have names of
    operators."""
    if isinstance(table, dict) and table and all(isinstance(key, str) and _is_text(table[key]) for key in table):
        return MsprobeMapping(layers=table)
    listed = [table] if isinstance(table, dict) and "ms_api" in table else table
    if isinstance(listed, list) and listed and all(map(_is_api, listed)):
        return MsprobeMapping(apis={one["ms_api"]: _api(one) for one in listed})
    return None


def _is_text(table: Any) -> bool:
    return isinstance(table, dict) and all(isinstance(word, str) and word for item in table.items() for word in item)


def _is_api(one: Any) -> bool:
    return isinstance(one, dict) and all(isinstance(one.get(key), str) for key in ("ms_api", "pt_api"))


def _api(one: Mapping[str, Any]) -> Api:
    """An entry of api_mapping. Lists of unequal length are ignored; a slot missing from a given list has no partner."""
    slots: dict[str, str] = {}
    roles = []
    for word, role in _LISTS.items():
        here, there = one.get(f"ms_{word}"), one.get(f"pt_{word}")
        if isinstance(here, list) and isinstance(there, list) and len(here) == len(there) > 0:
            slots.update((f"{role}:{a}", f"{role}:{b}") for a, b in zip(here, there))
            roles.append(role)
    return Api(one["ms_api"], one["pt_api"], slots, tuple(roles))
