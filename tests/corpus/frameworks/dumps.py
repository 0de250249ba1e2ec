"""Writes the calls of a run as the frameworks' tools dump them.

msprobe, mix, modules, statistics   dump.json and dump_tensor_data/*.npy (APIs; with modules; modules alone; figures)
fx                                  {node}-aten.{operator}.{overload}.{INPUT|OUTPUT}.{n}.{time}.npy
slots                               {operator}.{input|output}.{n}.npy
graph                               {operator}.{n}.{time}.npy, outputs alone, and graph.pb
npz                                 one file; {operator}.{input|output}.{n} in it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from tests.corpus.frameworks.tape import Call

TIME = 1_767_225_600_000_000


class Slot(NamedTuple):
    """A tensor of a call: slot is npucmp's name of it ("input:0", "output:0", "param:weight")."""

    slot: str
    array: np.ndarray


def slots(call: Call, format: str) -> Iterator[Slot]:
    """Yield the tensors of a call that a format writes, under the slots that npucmp gives to them."""
    by_place = format in PROBES and len(call.places) == len(call.inputs)
    if format != "graph":
        for k, one in enumerate(call.inputs):
            yield Slot(f"input:{call.places[k] if by_place else k}", one)
    for k, one in enumerate(call.outputs):
        yield Slot(f"output:{k}", one)
    for name, one in dict(call.arguments.get("parameters") or {}).items():
        yield Slot(f"param:{name}", one)


def recorded(calls: Sequence[Call], format: str) -> list[Call]:
    """Return the calls that a format writes."""
    if format == "modules":
        return [one for one in calls if one.type == "Module"]
    if format == "mix":
        return list(calls)
    return [one for one in calls if one.type != "Module"]


def write(folder: Path, calls: Sequence[Call], format: str, sources: Mapping[str, Sequence[str]]) -> None:
    """Write a dump; sources: of a graph, operator → names of what it reads."""
    found = recorded(calls, format)
    if format in PROBES:
        _probe(folder, found, format)
        return
    folder.mkdir(parents=True, exist_ok=True)
    if format == "npz":
        held = {f"{one.name}.{slot.slot.replace(':', '.')}": slot.array for one in found for slot in slots(one, format)}
        np.savez(folder / "tensors.npz", **held)
        return
    place = folder / "worldsize1_global_rank0" / "graph_1" / "0" if format == "fx" else folder
    place.mkdir(parents=True, exist_ok=True)
    for at, call in enumerate(found):
        for slot, array in slots(call, format):
            role, _, k = slot.partition(":")
            if format == "fx":
                file = f"{call.name}.{role.upper()}.{k}.20251017071211{190258 + at:06d}.npy"
            elif format == "graph":
                file = f"{call.name.replace('/', '_')}.{k}.{TIME + 100 * at}.npy"
            else:
                file = f"{call.name}.{role}.{k}.npy"
            np.save(place / file, array)
    if format == "graph":
        folder.joinpath("graph.pb").write_bytes(_graph(found, sources))


PROBES = ("msprobe", "mix", "modules", "statistics")
TYPES = {"bool": "torch.bool", "int32": "torch.int32", "int64": "torch.int64"}


def _probe(folder: Path, calls: Sequence[Call], format: str) -> None:
    place = folder / "step0" / "rank"
    data = place / "dump_tensor_data"
    data.mkdir(parents=True)
    values = format != "statistics"

    def leaf(name: str, array: np.ndarray) -> dict[str, Any]:
        found: dict[str, Any] = {
            "type": "torch.Tensor",
            "dtype": TYPES.get(array.dtype.name, f"torch.{array.dtype.name}"),
            "shape": list(array.shape),
        }
        if array.size and array.dtype.kind == "f":
            wide = array.astype(np.float64)
            figures = wide.max(), wide.min(), wide.mean(), np.sqrt((wide * wide).sum())
            found.update(zip(("Max", "Min", "Mean", "Norm"), (float(np.float32(one)) for one in figures)))
        elif array.size:
            found.update(Max=int(array.max()), Min=int(array.min()), Mean=None, Norm=None)
        if values:
            found["data_name"] = f"{name}.npy"
            np.save(data / f"{name}.npy", array)
        return found

    records: dict[str, Any] = {}
    for call in calls:
        items: dict[str, Any] = {}
        outputs = []
        parameters = {}
        for slot, array in slots(call, format):
            role, _, place_of = slot.partition(":")
            word = {"param": "parameters"}.get(role, role)
            made = leaf(f"{call.name}.{word}.{place_of}", array)
            if role == "output":
                outputs.append(made)
            elif role == "param":
                parameters[place_of] = made
            else:
                items[place_of] = made
        numbers = {k: v for k, v in call.arguments.items() if isinstance(v, (bool, int, float, str))}
        items.update({k: {"type": type(v).__name__, "value": v} for k, v in numbers.items() if k not in items})
        places, keywords = _arranged(items)
        records[call.name] = {"input_args": places, "input_kwargs": keywords, "output": outputs}
        if parameters:
            records[call.name]["parameters"] = parameters
    level = {"mix": "mix", "modules": "L0"}.get(format, "L1")
    top = {"task": "tensor" if values else "statistics", "level": level, "framework": "pytorch"}
    place.joinpath("dump.json").write_text(
        json.dumps({**top, "dump_data_dir": "./dump_tensor_data" if values else None, "data": records})
    )
    place.joinpath("construct.json").write_text("{}")


def _arranged(items: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return positional arguments (None where a place holds nothing recorded) and keywords."""
    places: dict[int, Any] = {}
    keywords: dict[str, Any] = {}
    for key, item in items.items():
        first, _, rest = key.partition(".")
        if not first.isdigit():
            keywords[key] = item
        elif rest:
            places.setdefault(int(first), []).append(item)
        else:
            places[int(first)] = item
    return [places.get(k) for k in range(max(places, default=-1) + 1)], keywords


def _graph(calls: Sequence[Call], sources: Mapping[str, Sequence[str]]) -> bytes:
    """Return a GraphDef; what no operator made is a Const."""
    from tensorflow.core.framework import graph_pb2

    graph = graph_pb2.GraphDef()
    for call in calls:
        read = []
        for k, source in enumerate(sources.get(call.name, ())):
            if not source:
                source = f"{call.name}/const_{k}"
                graph.node.add(name=source, op="Const")
            read.append(source)
        graph.node.add(name=call.name, op=call.type, input=read)
    return graph.SerializeToString()  # type: ignore[no-any-return]
