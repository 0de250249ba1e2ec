"""The settings of a network that its configuration states, by one name each: config.json of transformers, params.json
of Meta, the arguments in a checkpoint of Megatron, adapter_config.json of PEFT.

An option of the user comes before a configuration, the target's configuration before the golden's.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, NamedTuple, Optional

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
