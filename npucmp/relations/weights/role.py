"""The role of a parameter by its name: the layer, the kind of weight, the parameter of it and the expert.

A convention is a table of suffixes of names. A kind is the same in all conventions: `q`, `gate`, `n1`. Fused kinds say
how the parts lie in the tensor:

    qkv    q, k and v one behind the other on each rank        qkv_groups  per query group: its heads of q, k, v
    gu     gate and up one behind the other on each rank       fc1         gate and up, or one matrix without a gate
    gu_stack, down_stack  experts along the first axis         qkv_a       the low-rank parts of q and of k and v
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Iterable, NamedTuple, Optional, Sequence

from npucmp.relations.weights import conventions
from npucmp.relations.weights.convention import Convention

COLUMN = frozenset("embed head q k v qkv qkv_groups gate up gu fc fc1 q_b kv_b".split())  # ranks hold rows
ROW = frozenset("o down fc2".split())  # ranks hold columns; a bias is whole on each
ORDER = (
    "embed pos types n0 qkv_a q_a q_a_norm q_b kv_a kv_a_norm kv_b n1 qkv qkv_groups q qn k kn v o router router_bias "
    "n2 gate up gu fc1 fc gu_stack down down_stack fc2 shared_router shared_gate shared_up shared_gu shared_fc1 "
    "shared_down nf head pooler"
).split()
LAST = frozenset("nf head pooler".split())
SCALES = ("_scale_inv", "_scale", ".scale_inv", ".scales", ".scale")
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.([0-9]{1,6})\.")
_BUFFER = re.compile(
    r"(?:rotary_emb|rotary_pos_emb|rope)\.\w*(?:inv_freq|freqs\w*)$|(?:^|\.)rope\.freqs$|position_ids$|_extra_state\S*$|"
    r"(?:^|\.)(?:attn|attention|self)\.(?:masked_)?bias$|"
    r"(?:^|\.)(?:physical_to_logical|logical_to_physical|phy2log|log2phy|logical_replica_count|expert_map|expert_load)\w*$"
)
_BEHIND = 1 << 30  # layer: definition: behind all layers
_MASK_AXES = 4  # axes: definition: batch, heads, rows, columns
_LORA = re.compile(r"\.lora_(A|B)(?:\.[\w-]+)?\.weight$")
_WRAPPERS = re.compile(r"^(?:base_model\.model\.|module\.|_orig_mod\.|_fsdp_wrapped_module\.)+")
_OUTER = frozenset(
    " model transformer decoder encoder language_model llm bert roberta gpt gpt2 backbone base_model text_model "
    "embedding embeddings cls predictions".split(" ")
)  # names of modules around layers
_INNER = frozenset(
    " self_attn self_attention attention attn self mlp moe block_sparse_moe feed_forward ffn output intermediate "
    "experts".split(" ")
)  # names of modules within a layer
_PARAMETERS = {"gamma": "weight", "beta": "bias"}


class Role(NamedTuple):
    """The role of a tensor. `layer` counts from 0, None outside of layers; `param` is "weight" or "bias"; `expert` is
    None for dense layers. `part` is "" for the parameter itself, else "scale", "lora_A" or "lora_B"."""

    layer: Optional[int]
    kind: str
    param: str
    expert: Optional[int] = None
    part: str = ""

    @property
    def family(self) -> tuple[str, str]:
        """The tensors of the other layers and experts that hold the same."""
        return self.kind, self.param

    @property
    def is_shift_free(self) -> bool:
        """Whether the reader compares the elements with each other: the largest are chosen, or a softmax follows. A
        constant added to all changes nothing."""
        return not self.part and (
            self.kind == "router_bias" or (self.kind in ("router", "head") and self.param == "bias")
        )

    @property
    def position(self) -> tuple[int, int, int, str]:
        """The place in the order in which the network runs."""
        number = ORDER.index(self.kind) if self.kind in ORDER else len(ORDER)
        layer = self.layer if self.layer is not None else (_BEHIND if self.kind in LAST else -1)
        return layer, number, -1 if self.expert is None else self.expert, "" if self.param == "weight" else self.param


class NamedRole(NamedTuple):
    """The role of a tensor and the convention of its name, None for a name that no convention has."""

    role: Role
    convention: Optional[Convention]


def is_buffer(name: str, shape: Sequence[int] = ()) -> bool:
    """Return whether a tensor of a state dict is no parameter: masks, position numbers and frequencies. A mask has one
    element or four axes."""
    return bool(_BUFFER.search(name)) and (not name.endswith("bias") or len(shape) in (0, _MASK_AXES))


def named_role(name: str) -> NamedRole:
    """Return the role of a name. A name without a convention has a kind of its own, so that equal names are
    partners."""
    bare = _WRAPPERS.sub("", name).replace(".base_layer.", ".")
    part = ""
    if lora := _LORA.search(bare):
        bare, part = f"{bare[: lora.start()]}.weight", f"lora_{lora[1]}"
    for ending in SCALES:
        if bare.endswith(ending) and not bare.endswith("input_scale") and not part:
            bare, part = bare[: -len(ending)], "scale"
            bare = bare if bare.endswith(("weight", "bias")) or ending[0] == "_" else f"{bare}.weight"
            break
    found = _LAYER.search(bare)
    layer = int(found[1]) if found else None
    tail = bare[found.end() :] if found else bare
    for convention in conventions.CONVENTIONS:
        for pattern, kind in convention.compiled:
            match = pattern.search(tail)
            if match is None or (found is None) is not convention.is_global(kind):
                continue
            before = tail[: match.start()] if found else ""
            outer = bare[: found.start()] if found else tail[: match.start()]
            if not (_is_known(outer, _OUTER) and _is_known(before, _INNER)):
                continue
            groups = match.groupdict()
            param = _PARAMETERS.get(groups.get("p") or "", groups.get("p") or "weight")
            expert = groups.get("e")
            return NamedRole(Role(layer, kind, param, int(expert) if expert else None, part), convention)
    return NamedRole(_own_role(bare, part), None)


def _own_role(bare: str, part: str) -> Role:
    """Return the role of a name without a convention: the name, without the number of its layer."""
    found = _LAYER.search(bare)
    if found is None:
        return Role(None, f"={bare}", "", None, part)
    return Role(int(found[1]), f"={bare[: found.start(1)]}#{bare[found.end(1) :]}", "", None, part)


def named_roles(names: Iterable[str]) -> dict[str, NamedRole]:
    """Return the roles of the tensors of one rank. Names with the same role, as those of an encoder and a decoder, have
    roles of their own."""
    found = {name: named_role(name) for name in names}
    count = Counter(one.role for one in found.values())
    alone = {name: NamedRole(_own_role(_WRAPPERS.sub("", name), ""), None) for name, one in found.items()
             if count[one.role] > 1}  # fmt: skip
    return {**found, **alone}


def _is_known(path: str, words: frozenset[str]) -> bool:
    """Return whether a path has only names of the network itself: a tower of images or an attention to an encoder has
    roles of its own."""
    return {*path.strip(".").split(".")} <= words


def renumbered(name: str, layer: int) -> str:
    """Return a name with another number of its layer."""
    found = _LAYER.search(name)
    return f"{name[: found.start(1)]}{layer}{name[found.end(1) :]}" if found else name
