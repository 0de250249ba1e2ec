"""Faults of converters and of synchronisations, each with the golden tensors that may be named first."""

from __future__ import annotations

import re
from typing import Callable, NamedTuple, Optional

import numpy as np

from tests.corpus.weights.conversions import Converted
from tests.corpus.weights.files import Stored
from tests.corpus.weights.networks import Network

Names = "set[str]"


class FaultyNetwork(NamedTuple):
    """The tensors with a fault, and the tensors that it changed, of which the first in the network has to be named."""

    tensors: dict[str, Stored]
    truth: set[str]


def _layer(net: Network, rng: np.random.Generator, pattern: str) -> Optional[str]:
    names = [name for name in net.tensors if re.search(pattern, name)]
    return str(rng.choice(names)) if names else None


def _matrix(net: Network, rng: np.random.Generator) -> str:
    return str(rng.choice([name for name, one in net.tensors.items() if one.values.ndim == 2]))


def _changed(net: Network, **new: np.ndarray) -> FaultyNetwork:
    return _with(net, new)


def _with(net: Network, new: dict[str, np.ndarray]) -> FaultyNetwork:
    tensors = {
        name: one.like(np.ascontiguousarray(new[name])) if name in new else one for name, one in net.tensors.items()
    }
    return FaultyNetwork(tensors, {*new})


def _values(net: Network, name: str) -> np.ndarray:
    return net.tensors[name].values.copy()


def gate_and_up(net: Network, rng: np.random.Generator) -> Optional[FaultyNetwork]:
    name = _layer(net, rng, r"gate_proj\.weight|\.w1\.weight")
    return None if name is None else _exchange(net, name, _up(name))


def _up(name: str) -> str:
    return name.replace("gate_proj", "up_proj").replace(".w1.", ".w3.")


def _exchange(net: Network, one: str, other: str) -> FaultyNetwork:
    return _with(net, {one: _values(net, other), other: _values(net, one)})


def every_gate_and_up(net: Network, rng: np.random.Generator) -> Optional[FaultyNetwork]:
    gates = [name for name in net.tensors if re.search(r"mlp\.gate_proj\.weight", name)]
    if len(gates) < 2:
        return None
    new = {}
    for name in gates:
        new[name], new[_up(name)] = _values(net, _up(name)), _values(net, name)
    return FaultyNetwork(_with(net, new).tensors, {gates[0], _up(gates[0])})


def key_for_value(net: Network, rng: np.random.Generator) -> Optional[FaultyNetwork]:
    name = _layer(net, rng, r"(?:v_proj|\.value)\.weight")
    if name is None:
        return None
    return _with(net, {name: _values(net, name.replace("v_proj", "k_proj").replace(".value", ".key"))})


def layers_exchanged(net: Network, rng: np.random.Generator) -> Optional[FaultyNetwork]:
    name = _layer(net, rng, r"\.(?:layers|h|layer)\.0\..*weight$")
    if name is None:
        return None
    others = [
        one
        for one in net.tensors
        if re.sub(r"\d+", "", one, count=1) == re.sub(r"\d+", "", name, count=1) and one != name
    ]
    return _exchange(net, name, str(rng.choice(others))) if others else None


def rows_zero(net: Network, rng: np.random.Generator) -> FaultyNetwork:
    name = _matrix(net, rng)
    x = _values(net, name)
    count = int(rng.integers(1, max(2, len(x) // 2)))
    start = int(rng.integers(0, len(x) - count))
    x[start : start + count] = 0
    return _with(net, {name: x})


def all_zero(net: Network, rng: np.random.Generator) -> FaultyNetwork:
    name = _matrix(net, rng)
    return _with(net, {name: _values(net, name) * 0})


def one_element(net: Network, rng: np.random.Generator) -> FaultyNetwork:
    name = _matrix(net, rng)
    x = _values(net, name)
    x[tuple(int(rng.integers(size)) for size in x.shape)] = 0.4
    return _with(net, {name: x})


def factor(net: Network, rng: np.random.Generator) -> FaultyNetwork:
    name = _matrix(net, rng)
    return _with(net, {name: _values(net, name) * np.float32(1.1)})


def stale(net: Network, rng: np.random.Generator) -> FaultyNetwork:
    """The weights of an earlier step."""
    name = _matrix(net, rng)
    x = _values(net, name)
    return _with(net, {name: x + (0.01 * rng.standard_normal(x.shape)).astype(np.float32)})


def transposed(net: Network, rng: np.random.Generator) -> Optional[FaultyNetwork]:
    names = [
        name for name, one in net.tensors.items() if one.values.ndim == 2 and one.values.shape[0] == one.values.shape[1]
    ]
    return _with(net, {name: _values(net, name).T}) if names and (name := str(rng.choice(names))) else None


def rows_exchanged(net: Network, rng: np.random.Generator) -> FaultyNetwork:
    name = _matrix(net, rng)
    x = _values(net, name)
    a, b = rng.choice(len(x), 2, replace=False)
    x[[a, b]] = x[[b, a]]
    return _with(net, {name: x})


def vocabulary_rolled(net: Network, rng: np.random.Generator) -> Optional[FaultyNetwork]:
    name = _layer(net, rng, r"embed_tokens|wte|word_embeddings")
    return None if name is None else _with(net, {name: np.roll(_values(net, name), 1, 0)})


def experts_exchanged(net: Network, rng: np.random.Generator) -> Optional[FaultyNetwork]:
    name = _layer(net, rng, r"experts\.0\..*weight")
    return None if name is None else _exchange(net, name, name.replace("experts.0.", "experts.1."))


def norm_of_ones(net: Network, rng: np.random.Generator) -> Optional[FaultyNetwork]:
    name = _layer(net, rng, r"(?:norm|LayerNorm|ln_\w)\.weight")
    return None if name is None else _with(net, {name: np.ones_like(_values(net, name))})


def columns_moved(net: Network, rng: np.random.Generator) -> Optional[FaultyNetwork]:
    name = _layer(net, rng, r"(?:down_proj|o_proj|\.w2)\.weight")
    return None if name is None else _with(net, {name: np.roll(_values(net, name), 3, 1)})


def nan(net: Network, rng: np.random.Generator) -> FaultyNetwork:
    name = _matrix(net, rng)
    x = _values(net, name)
    x[0, 0] = np.nan
    return _with(net, {name: x})


BEFORE: dict[str, Callable[[Network, np.random.Generator], Optional[FaultyNetwork]]] = {
    one.__name__: one
    for one in (
        gate_and_up,
        every_gate_and_up,
        key_for_value,
        layers_exchanged,
        rows_zero,
        all_zero,
        one_element,
        factor,
        stale,
        transposed,
        rows_exchanged,
        vocabulary_rolled,
        experts_exchanged,
        norm_of_ones,
        columns_moved,
        nan,
    )
}


class FaultyTarget(NamedTuple):
    """The ranks with a fault, and expressions of the golden names that may be first. `missing`: nothing can be
    decided."""

    ranks: dict[str, dict[str, Stored]]
    truth: tuple[str, ...]
    missing: bool = False


def _copy(made: Converted) -> dict[str, dict[str, Stored]]:
    return {folder: dict(tensors) for folder, tensors in made.ranks.items()}


def _golden_of(name: str, first_layer: int = 0) -> tuple[str, ...]:
    """Expressions of the golden names of a tensor of Megatron."""
    found = re.search(r"layers\.(\d+)\.", name)
    layer = rf"\.{int(found[1]) + first_layer}\." if found else ""
    for old, new in (("linear_qkv.layer_norm", r"input_layernorm"), ("linear_fc1.layer_norm",
    "post_attention_layernorm"),
                     ("linear_qkv", r"(?:[qkv]_proj|c_attn)"), ("linear_proj", r"(?:o_proj|attn\.c_proj)"),
                     ("linear_fc1", r"(?:gate_proj|up_proj|c_fc|w1|w3)"), ("linear_fc2",
                     r"(?:down_proj|mlp\.c_proj|w2)"), ("word_embeddings", "embed_tokens|wte"), ("output_layer",
                     "lm_head")):  # fmt: skip
        if old in name:
            return (rf"{layer}.*(?:{new})" if layer else new,)
    return (layer or re.escape(name),)


def shards_swapped(made: Converted, rng: np.random.Generator) -> Optional[FaultyTarget]:
    """One tensor of two ranks of a stage."""
    folders = [folder for folder in sorted(made.ranks) if "embedding.word_embeddings.weight" in made.ranks[folder]]
    if len(folders) < 2:
        return None
    ranks = _copy(made)
    a, b = folders[:2]
    names = [
        name
        for name in ranks[a]
        if ranks[a][name].values.shape
        and not np.array_equal(ranks[a][name].values, ranks[b][name].values)
        and "experts" not in name
    ]
    if not names:
        return None
    name = str(rng.choice(names))
    ranks[a][name], ranks[b][name] = ranks[b][name], ranks[a][name]
    return FaultyTarget(ranks, _golden_of(name))


def copy_differs(made: Converted, rng: np.random.Generator) -> Optional[FaultyTarget]:
    """A norm of the second rank of a stage."""
    folders = [folder for folder in sorted(made.ranks) if "embedding.word_embeddings.weight" in made.ranks[folder]]
    if len(folders) < 2:
        return None
    ranks = _copy(made)
    name = next(name for name in ranks[folders[1]] if "norm" in name and name.endswith("weight"))
    one = ranks[folders[1]][name]
    ranks[folders[1]][name] = one.like(one.values * np.float32(1.5))
    return FaultyTarget(ranks, (r"\.0\..*(?:input_layernorm|post_attention_layernorm|ln_1|ln_2)",))


def not_grouped(made: Converted, rng: np.random.Generator) -> Optional[FaultyTarget]:
    """q, k and v one behind the other, in all layers, under a name that says per query group."""
    if len(made.ranks) != 1:
        return None
    ranks = _copy(made)
    (own,) = ranks.values()
    names = [name for name in own if "linear_qkv.weight" in name]
    if not names:
        return None
    for name in names:
        parts = _qkv(made, name)
        if parts is None:
            return None
        own[name] = own[name].like(np.concatenate(parts))
    return FaultyTarget(ranks, (r"\.0\..*(?:[qkv]_proj|c_attn)",))


def _qkv(made: Converted, name: str) -> Optional[list[np.ndarray]]:
    layer = re.search(r"layers\.(\d+)", name)
    assert layer is not None
    parts = [one.values for x in "qkv" for golden, one in made.golden.items()
             if f"layers.{layer[1]}.self_attn.{x}_proj.weight" in golden]  # fmt: skip
    return parts if len(parts) == 3 else None


def scale_missing(made: Converted, rng: np.random.Generator) -> Optional[FaultyTarget]:
    ranks = _copy(made)
    own = ranks.get("", {})
    names = [name for name in own if name.endswith(("_scale", "_scale_inv"))]
    if not names:
        return None
    name = str(rng.choice(names))
    del own[name]
    return FaultyTarget(ranks, _fused(name))


def scale_doubled(made: Converted, rng: np.random.Generator) -> Optional[FaultyTarget]:
    ranks = _copy(made)
    own = ranks.get("", {})
    names = [name for name in own if name.endswith(("_scale", "_scale_inv"))]
    if not names:
        return None
    name = str(rng.choice(names))
    x = own[name].values.copy()
    x[(0,) * x.ndim] *= 2
    own[name] = own[name].like(x)
    return FaultyTarget(ranks, _fused(name))


def _fused(name: str) -> tuple[str, ...]:
    bare = re.escape(re.sub(r"_scale(?:_inv)?$", "", name))
    return (bare.replace("qkv_proj", "[qkv]_proj").replace("gate_up_proj", "(?:gate|up)_proj"),)


def lost(made: Converted, rng: np.random.Generator) -> FaultyTarget:
    """A tensor is missing."""
    ranks = _copy(made)
    folder = sorted(ranks)[0]
    names = [
        name for name in ranks[folder] if re.search(r"\.(?:0|1)\..*(?:norm|proj|qkv)", name) and "_scale" not in name
    ]
    names = names or [name for name in ranks[folder] if "_scale" not in name]
    del ranks[folder][str(rng.choice(names))]
    return FaultyTarget(ranks, (), True)


AFTER: dict[str, Callable[[Converted, np.random.Generator], Optional[FaultyTarget]]] = {
    one.__name__: one for one in (shards_swapped, copy_differs, not_grouped, scale_missing, scale_doubled, lost)
}
