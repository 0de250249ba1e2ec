"""Numbers that neither names nor shapes show, once for the whole checkpoint: query groups, head size, scale of LoRA.

A number is declared by the user, else stated by a configuration, else taken by the majority of all parts: at least a
third of them agree under it, and no other number has half as many. A number that would make a wrong layout trivial is
not offered: one query group is plain concatenation.

Configurations state settings by one name each: config.json of transformers, params.json of Meta, the arguments in a
checkpoint of Megatron, adapter_config.json of PEFT. The target's configuration comes before the golden's.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import joined, sliced
from npucmp.dump.readers.weight_payloads import paired_rows
from npucmp.model import Payload
from npucmp.relations.weights.limits import limit_of
from npucmp.relations.weights.part import Part, changed
from npucmp.relations.weights.role import Role
from npucmp.relations.weights.sample import part_agrees

SHARE = 1 / 3  # of parts: chosen: q, k and v of most layers agree, faults are in a few tensors (specification, layer 3)
SECOND = 0.5  # of the votes: chosen: another number with half as many leaves the choice open
SMALLEST_HEAD = 4  # rows of a head: chosen: heads in use are larger
LAYERS = 24  # layers that vote: work


class FreeNumber(NamedTuple):
    """The number, None if nothing decides; how it was decided, in words; the number that most parts have."""

    value: Optional[float]
    words: str = ""
    likely: Optional[float] = None


def decided(votes: Mapping[float, int], parts: int) -> FreeNumber:
    """Return the number with enough votes of so many parts."""
    ranked = sorted(votes.items(), key=lambda one: (-one[1], one[0]))
    if not ranked or not ranked[0][1]:
        return FreeNumber(None)
    best, count = ranked[0]
    second = ranked[1][1] if len(ranked) > 1 else 0
    if count >= SHARE * parts and second < SECOND * count:
        return FreeNumber(best, f"by values: {count} of {parts} parts", best)
    return FreeNumber(None, likely=best)


def divisors(number: int, least: int = 1) -> list[int]:
    """Return the divisors of a number from `least` on."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted(one for one in {*small, *(number // one for one in small)} if one >= least)


def spread(items: Sequence[Part], most: int = LAYERS) -> list[Part]:
    """Return the parts of at most `most` layers, spread over all."""
    layers = sorted({part.role.layer or 0 for part in items})
    chosen = {layers[at * len(layers) // most] for at in range(most)} if len(layers) > most else {*layers}
    return [part for part in items if (part.role.layer or 0) in chosen]


# query groups


def cut_of(kind: str, groups: int, rows: tuple[int, int, int], payload: Payload) -> Payload:
    """Return q, k or v of a tensor that holds them per query group."""
    sizes = [one // groups for one in rows]
    step, number = sum(sizes), "qkv".index(kind)
    start = sum(sizes[:number])
    pieces = [sliced(payload, 0, at * step + start, at * step + start + sizes[number]) for at in range(groups)]
    return joined(pieces, 0)


def group_rows(fused: Part, query: int) -> Optional[tuple[int, int, int]]:
    """Return the rows of q, k and v; None if they do not fill the tensor."""
    rest = fused.shape[0] - query if fused.shape else 0
    return (query, rest // 2, rest // 2) if query > 0 and rest > 1 and rest % 2 == 0 else None


def query_groups(
    fused: Sequence[tuple[Part, tuple[int, int, int]]], others: Mapping[Role, Part], shards: int, context: ReadContext
) -> FreeNumber:
    """Return the number of query groups under which most parts are those of the other side."""
    votes: Counter[float] = Counter()
    chosen = {part.role for part in spread([part for part, _ in fused])}
    parts = 0
    for part, rows in fused:
        if part.role not in chosen or part.payload is None:
            continue
        there = {kind: others.get(part.role._replace(kind=kind)) for kind in "qkv"}
        parts += sum(one is not None for one in there.values())
        for groups in divisors(rows[1], 2):
            if groups % shards or rows[0] % groups or rows[1] // groups < 2:
                continue
            for kind, other in there.items():
                votes[groups] += _is_same(part, cut_of(kind, groups, rows, part.payload), other, context)
    return decided(votes, parts)


def _is_same(part: Part, payload: Payload, other: Optional[Part], context: ReadContext) -> bool:
    if other is None or other.payload is None:
        return False
    return part_agrees(payload, other.payload, limit_of(part, other), context)


# order of rotary embedding


def with_halves(part: Part, size: int) -> Part:
    """Return q or k of neighbouring pairs in the order of halves, for heads of `size` rows."""
    return changed(part, lambda payload: paired_rows(payload, size))


def head_size(own: Sequence[Part], others: Mapping[Role, Part], context: ReadContext) -> FreeNumber:
    """Return the size of a head under which most q and k of neighbouring pairs are those of the other side."""
    votes: Counter[float] = Counter()
    chosen = spread(own)
    for part in chosen:
        for size in divisors(part.shape[0], SMALLEST_HEAD) if part.shape else ():
            if size % 2 == 0:
                turned = with_halves(part, size).payload
                assert turned is not None
                votes[size] += _is_same(part, turned, others.get(part.role), context)
    return decided(votes, len(chosen))


_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "n_kv_heads", "num_query_groups")
_EXPERT_GROUPS = ("n_group", "num_expert_group", "moe_router_num_groups")
_HEAD_SIZE = ("head_dim", "kv_channels")
_MOST = 1 << 31  # of a size in a configuration: chosen: a larger one is damage


class DeclaredLayout(NamedTuple):
    """Declarations of the user: the convention of a side, the order of fc1, the number of key and value heads, the
    scale of LoRA. None for what was not declared."""

    target: Optional[str] = None
    golden: Optional[str] = None
    up_first: Optional[bool] = None
    kv_heads: Optional[int] = None
    lora_scale: Optional[float] = None


class NetworkSettings(NamedTuple):
    """The settings that configurations state; None for a setting that they do not state."""

    heads: Optional[int] = None
    kv_heads: Optional[int] = None
    head_size: Optional[int] = None
    tied: Optional[bool] = None
    vocabulary: Optional[int] = None
    lora_scale: Optional[float] = None
    block: Optional[tuple[int, int]] = None
    expert_groups: Optional[int] = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> NetworkSettings:
        """The settings in a configuration; values of a wrong type are ignored."""
        heads = _count(config, _HEADS)
        size = _count(config, _HEAD_SIZE)
        width = _count(config, ("hidden_size", "n_embd", "dim"))
        grouped = config.get("group_query_attention")
        kv_heads = heads if grouped is False else _count(config, _KV_HEADS)
        if size is None and heads and width and width % heads == 0:
            size = width // heads
        tied = config.get("tie_word_embeddings")
        if tied is None and isinstance(config.get("untie_embeddings_and_output_weights"), bool):
            tied = not config["untie_embeddings_and_output_weights"]
        return cls(heads, kv_heads, size, tied if isinstance(tied, bool) else None, _count(config, ("vocab_size",)),
                   _lora_scale(config), _block(config), _count(config, _EXPERT_GROUPS))  # fmt: skip

    def head_size_of(self, shapes: Mapping[str, tuple[int, ...]]) -> Optional[int]:
        """The rows of a head: those of q ("q" in `shapes`) over the stated heads, or of k over the stated key heads, as
        heads of all networks need not fill the width; else the stated size. None if none is stated."""
        for kind, count in (("k", self.kv_heads), ("q", self.heads)):
            shape = shapes.get(kind)
            if count and shape and shape[0] % count == 0:
                return shape[0] // count
        return self.head_size

    def over(self, other: NetworkSettings) -> NetworkSettings:
        """These settings, and those of the other configuration that this one does not state."""
        return other._replace(**{name: value for name, value in self._asdict().items() if value is not None})


def _count(config: Mapping[str, Any], names: tuple[str, ...]) -> Optional[int]:
    found = (config.get(name) for name in names)
    return next((one for one in found if type(one) is int and 0 < one < _MOST), None)


def _lora_scale(config: Mapping[str, Any]) -> Optional[float]:
    alpha, rank = config.get("lora_alpha"), config.get("r")
    if not isinstance(alpha, (int, float)) or not abs(alpha) < _MOST or type(rank) is not int or not 0 < rank < _MOST:
        return None
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") is True else rank)


def _block(config: Mapping[str, Any]) -> Optional[tuple[int, int]]:
    stated = config.get("quantization_config")
    sizes = stated.get("weight_block_size") if isinstance(stated, dict) else None
    if isinstance(sizes, list) and len(sizes) == 2 and all(type(one) is int and one > 0 for one in sizes):
        return sizes[0], sizes[1]
    return None
