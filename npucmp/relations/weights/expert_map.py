"""Recorded maps of experts: the expert that each slot of a layer holds, as an engine states it.

    physical_to_logical_map, phy2log     a tensor (layers, slots) or one of each layer, in the checkpoint
    a JSON file or a key of config.json  a list for all layers, a list for each, or an object with such a list
    layer_list, device_list              vllm-ascend's expert_map.json: the experts of each device of each layer

A list for each layer counts the layers with experts, or all layers.
Sources: vllm-project/vllm (eplb), sgl-project/sglang (expert_location.py), vllm-project/vllm-ascend, deepseek-ai/EPLB.
"""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.checkpoint_files import EXPERT_MAP
from npucmp.errors import NpucmpError, SystemFailure
from npucmp.relations.weights.sample import whole_values
from npucmp.relations.weights.structure import CheckpointStructure

ExpertMap = tuple[int, ...]  # the expert of each slot
Layer = Optional[int]
LARGEST = 1 << 20  # slots of all layers: work
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.([0-9]{1,6})\.")
_MAP = re.compile(r"(?:physical_to_logical|logical_to_physical|phy2log|log2phy|logical_replica_count|expert_map)\w*")
_KEYS = ("physical_to_logical_map", "physical_to_logical", "phy2log")


def expert_maps(side: CheckpointStructure, layers: Sequence[Layer], context: ReadContext) -> dict[Layer, ExpertMap]:
    """Return the maps that a checkpoint or a file beside it records, by layer; `layers` are those with experts."""
    found: dict[Layer, ExpertMap] = {}
    for table in _tables(side.checkpoint.config.get(EXPERT_MAP)):
        found.update(_by_layer(table, layers))
    for held in side.held.values():
        ref = held.pieces[0].ref
        if held.pieces[0].name.rpartition(".")[2].startswith(_KEYS) and 0 < len(ref.shape) < 3:
            if ref.payload is None or np.prod(ref.shape) > LARGEST:
                continue
            try:
                values = whole_values(ref.payload, context)
            except SystemFailure:
                raise
            except NpucmpError:
                continue
            named = _LAYER.search(held.pieces[0].name)
            table = values.astype(np.int64).tolist()
            found.update({int(named[1]): tuple(table)} if named and values.ndim == 1 else _by_layer(table, layers))
    return found


def is_expert_map(name: str) -> bool:
    """Return whether a tensor says where an engine holds experts."""
    return _MAP.fullmatch(name.rpartition(".")[2]) is not None


def has_expert_map(side: CheckpointStructure) -> bool:
    """Return whether a checkpoint records a map of its experts."""
    named = (held.pieces[0].name for held in side.held.values())
    return EXPERT_MAP in side.checkpoint.config or any(map(is_expert_map, named))


def _tables(stated: Any) -> Iterator[Any]:
    """Yield the lists that a configuration states."""
    if isinstance(stated, list):
        yield stated
    if isinstance(stated, Mapping):
        yield from (stated[key] for key in _KEYS if isinstance(stated.get(key), list))
        rows = stated.get("layer_list")
        if isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows):
            devices = [row.get("device_list") for row in rows]
            yield [
                [expert for device in own for expert in (device.get("device_expert") or ())]
                for own in devices
                if isinstance(own, list) and all(isinstance(device, Mapping) for device in own)
            ]


def _by_layer(table: Any, layers: Sequence[Layer]) -> dict[Layer, ExpertMap]:
    """Return the map of each layer of a list of numbers, which holds for all, or of a list of such lists."""
    rows = table if table and isinstance(table[0], list) else [table] * len(layers)
    if not all(isinstance(row, list) and all(type(slot) is int for slot in row) for row in rows):
        return {}
    numbers: Sequence[Layer] = layers if len(rows) == len(layers) else range(len(rows))
    return {layer: tuple(row) for layer, row in zip(numbers, rows) if layer in layers}
