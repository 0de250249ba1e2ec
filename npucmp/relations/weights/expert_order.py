"""Experts in another order on both sides of the router: a network that numbers its experts otherwise.

The rows of a router that stand in another order propose an order of the experts; the experts prove it if they stand in
the same one. Then the network computes the same, and experts, router and its bias are compared in the order of the
golden. A router that chooses groups of experts first has to keep the experts of a group together.

Recorded maps state the expert that each slot of a layer holds:

    physical_to_logical_map, phy2log     a tensor (layers, slots) or one of each layer, in the checkpoint
    a JSON file or a key of config.json  a list for all layers, a list for each, or an object with such a list
    layer_list, device_list              vllm-ascend's expert_map.json: the experts of each device of each layer

A list for each layer counts the layers with experts, or all layers.
Sources: vllm-project/vllm (eplb), sgl-project/sglang (expert_location.py), vllm-project/vllm-ascend, deepseek-ai/EPLB.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import joined, sliced
from npucmp.dump.readers.checkpoint_files import EXPERT_MAP
from npucmp.errors import if_unreadable
from npucmp.model import Payload
from npucmp.relations.weights.limits import WeightLimit, limit_of
from npucmp.relations.weights.part import Part, changed
from npucmp.relations.weights.role import Role
from npucmp.relations.weights.sample import Array, agrees, row_numbers, rows_of, whole_values
from npucmp.relations.weights.structure import CheckpointStructure, Piece

Order = tuple[int, ...]  # the golden's expert that each expert of the target is
STACKS = ("gu_stack", "down_stack")
ROUTERS = ("router", "router_bias")
ROWS = 4  # rows of an expert that are read: work
MOST = 1 << 26  # elements of a router: work
MOSTLY = 2 / 3  # share of experts: chosen: a few wrong ones still show the order of the others


class ExpertOrder(NamedTuple):
    """The order of the experts of a layer, and whether the groups of its router keep their experts."""

    layer: Optional[int]
    order: Order
    keeps_groups: bool


def expert_orders(
    target: Mapping[Role, Part], golden: Mapping[Role, Part], groups: Optional[int], context: ReadContext
) -> Iterator[ExpertOrder]:
    """Yield the layers whose experts and router stand in another order in the target."""
    for role, part in target.items():
        other = golden.get(role)
        if role.kind != "router" or role.param != "weight" or role.part or other is None:
            continue
        order = _order_of_rows(part, other, context)
        if order is not None and _follow(role, order, target, golden, context):
            yield ExpertOrder(role.layer, order, _keeps_groups(order, groups or 1))


def in_order(parts: dict[Role, Part], layer: Optional[int], order: Order) -> dict[Role, Part]:
    """Return the parts, of which experts and router of a layer stand in the golden's order."""
    places = [*np.argsort(order)]
    found: dict[Role, Part] = {}
    for role, part in parts.items():
        if role.layer == layer and role.expert is not None and role.expert < len(order):
            role = role._replace(expert=order[role.expert])
            part = part._replace(role=role)
        elif role.layer == layer and role.kind in (*STACKS, *ROUTERS) and part.shape[:1] == (len(order),):
            part = changed(part, partial(_rows_in_order, [int(place) for place in places]), "experts in another order")
        found[role] = part
    return found


def _rows_in_order(places: Sequence[int], payload: Payload) -> Payload:
    return joined([sliced(payload, 0, place, place + 1) for place in places], 0)


@if_unreadable(None)
def _order_of_rows(target: Part, golden: Part, context: ReadContext) -> Optional[Order]:
    """Return the golden's row for each row of a router; None for the same order, or if a row has no equal."""
    if target.shape != golden.shape or len(target.shape) != 2 or target.payload is None or golden.payload is None:
        return None
    if target.shape[0] * target.shape[1] > MOST:
        return None
    x, y = (whole_values(payload, context) for payload in (target.payload, golden.payload))
    return matched_rows(x, y, limit_of(target, golden))


def matched_rows(x: Array, y: Array, limit: WeightLimit) -> Optional[Order]:
    """Return the row of `y` that each row of `x` is; None for the same order, or if they are no rows of `y`."""
    with np.errstate(all="ignore"):
        squares = np.square(x).sum(1)[:, None] + np.square(y).sum(1) - 2 * np.einsum("ij,kj->ik", x, y)
        order = squares.argmin(1).tolist()
    if order == [*range(len(order))] or len({*order}) < len(order):
        return None
    fits = agrees(x, y[order], limit)
    return tuple(order) if fits and not agrees(x, y, limit) else None


@if_unreadable(False)
def is_alike(target: Part, golden: Part, context: ReadContext) -> bool:
    """Return whether some rows of two parts agree; of each expert of a stack."""
    if target.shape != golden.shape:
        return False
    x, y = (sampled_experts([part], context) for part in (target, golden))
    limit = limit_of(target, golden)
    return x is not None and y is not None and agrees(x, y, limit)


def sampled_experts(parts: Sequence[Part], context: ReadContext) -> Optional[Array]:
    """Return some elements of each expert: of several parts, or of the experts of one stack. None without values."""
    found = []
    for part in parts:
        if part.payload is None or not part.shape or 0 in part.shape:
            return None
        if part.role.kind in STACKS:
            found += [_sample(part.payload, at, context) for at in range(part.shape[0])]
        else:
            found.append(rows_of(part.payload, row_numbers(part.shape[0], ROWS), context).reshape(-1))
    return np.stack(found) if len({len(values) for values in found}) == 1 else None


def _sample(stack: Payload, at: int, context: ReadContext) -> Array:
    """Return some rows of an expert of a stack."""
    one = sliced(stack, 0, at, at + 1)
    numbers = row_numbers(stack.shape[1], ROWS)
    return np.concatenate([whole_values(sliced(one, 1, row, row + 1), context).reshape(-1) for row in numbers])


@if_unreadable(False)
def _follow(
    router: Role, order: Order, target: Mapping[Role, Part], golden: Mapping[Role, Part], context: ReadContext
) -> bool:
    """Whether most experts stand in the order of the rows of their router."""
    fits: set[int] = set()
    for role, part in target.items():
        if role.layer != router.layer or role.part or role.param != "weight":
            continue
        is_stack = role.kind in STACKS and part.shape[:1] == (len(order),)
        if not is_stack and (role.expert is None or role.expert >= len(order)):
            continue
        other = golden.get(role if role.expert is None else role._replace(expert=order[role.expert]))
        if other is None or other.shape != part.shape:
            continue
        x, y = (sampled_experts([one], context) for one in (part, other))
        if x is None or y is None:
            continue
        limit = limit_of(part, other)
        for at in range(len(x)):
            own = (x[at : at + 1], y[order[at] : order[at] + 1] if is_stack else y)
            if agrees(*own, limit):
                fits.add(at if role.expert is None else role.expert)
    return len(fits) >= MOSTLY * len(order)


def _keeps_groups(order: Order, groups: int) -> bool:
    """Whether the experts of each group of a router are those of one group of the golden."""
    if groups < 2 or len(order) % groups:
        return True
    size = len(order) // groups
    return all(len({of // size for of in order[start : start + size]}) == 1 for start in range(0, len(order), size))


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
        found.update(_recorded_map(held.pieces[0], layers, context) or {})
    return found


@if_unreadable(None)
def _recorded_map(piece: Piece, layers: Sequence[Layer], context: ReadContext) -> Optional[dict[Layer, ExpertMap]]:
    """Return what a tensor says of the experts of layers; None if it is no map."""
    ref, is_named = piece.ref, piece.name.rpartition(".")[2].startswith(_KEYS)
    if not is_named or not 0 < len(ref.shape) < 3 or ref.payload is None or np.prod(ref.shape) > LARGEST:
        return None
    layer = _LAYER.search(piece.name)
    table = whole_values(ref.payload, context).astype(np.int64).tolist()
    return {int(layer[1]): tuple(table)} if layer and len(ref.shape) == 1 else _by_layer(table, layers)


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
