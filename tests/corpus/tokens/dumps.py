"""Writes the records of a network in a layout as a dump: folders of .npy files, or msprobe's with .npy or .pt files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import numpy as np

from tests.corpus.tokens.layouts import PADDING, Step
from tests.corpus.tokens.network import HEADS, Arrays, Record
from tests.corpus.trace import Tensor
from tests.corpus.writers.msprobe import npy, pt, statistics


class Style(NamedTuple):
    """`form`: "npy", "L0" or "statistics"; `names`: "equal" or "vllm"; `ids`: whether the embedding is recorded;
    `extras`: masks or lengths, and positions; `ending` of the files of msprobe; `heads`: rotated queries and keys have
    an axis of heads."""

    form: str = "npy"
    names: str = "equal"
    ids: bool = True
    extras: bool = False
    ending: str = "pt"
    dtype: str = "float32"
    heads: bool = False


def write(
    folder: Path, steps: Sequence[Step], records: Sequence[Record], padding: Sequence[Record], style: Style, fused: bool
) -> None:
    """A dump of these steps. `padding`: the records of a request of padding; `fused`: q, k, v and gate, up as one."""
    own = [*_fused(records)] if fused else [*records]
    free = [*_fused(padding)] if fused else [*padding]
    keep = [both for both in zip(own, free) if style.ids or both[0].kind != "Embedding"]
    for number, step in enumerate(steps):
        place = folder / f"step{number}" / "rank0"
        tensors = [(one, *_tensors(one, pad, step, style, fused)) for one, pad in keep]
        if style.form == "npy":
            _write_npy(place, tensors, style)
        else:
            _write_msprobe(place, tensors, style, fused)


Tensors = tuple[Record, list[Any], list[Any], dict[str, Any]]


def _tensors(
    one: Record, pad: Record, step: Step, style: Style, fused: bool
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    inputs = [step.gathered(*both) for both in zip(one.inputs, (each[0] for each in pad.inputs))]
    outputs = [step.gathered(*both) for both in zip(one.outputs, (each[0] for each in pad.outputs))]
    more: dict[str, Any] = {}
    if style.heads and one.kind == "RotaryEmbedding":
        outputs = [_by_head(values) for values in outputs]
    if style.heads and one.kind == "Attention":
        inputs = [*map(_by_head, inputs[:2]), *inputs[2:]]
    if style.extras and one.kind == "RotaryEmbedding":
        more["position_ids"] = np.where(step.tokens[..., 0] == PADDING, 0, step.tokens[..., 1])
    if style.extras and one.kind == "Attention":
        if (step.tokens[..., 0] == PADDING).any():
            if style.form != "npy":
                more["attention_mask"] = step.mask
            elif step.tokens.ndim > 2:  # inputs have no names in folders of arrays
                more["lengths"] = step.lengths
        elif step.tokens.ndim == 2 and (np.diff(step.tokens[:, 1]) > 0).any():
            starts = np.nonzero(np.diff(step.tokens[:, 0]))[0] + 1
            more["cu_seqlens"] = np.array([0, *starts, len(step.tokens)], np.int32)
    return inputs, outputs, more


def _by_head(values: np.ndarray) -> np.ndarray:
    """(batch, heads, sequence, width) of a batch, (tokens, heads, width) of packed tokens."""
    heads = values.reshape(*values.shape[:-1], HEADS, -1)
    return heads.transpose(0, 2, 1, 3) if heads.ndim == 4 else heads


def _fused(records: Sequence[Record]) -> list[Record]:
    """Records with the fused products of vLLM."""
    found: list[Record] = []
    held: list[Record] = []
    for one in records:
        last = one.path.rpartition(".")[2]
        if last in ("q_proj", "k_proj", "gate_proj"):
            held.append(one)
        elif last in ("v_proj", "up_proj"):
            parts = [*held, one]
            held = []
            name, kind = (
                ("qkv_proj", "QKVParallelLinear") if len(parts) == 3 else ("gate_up_proj", "MergedColumnParallelLinear")
            )
            whole = [np.concatenate(some, 1) for some in zip(*(part.outputs[0] for part in parts))]
            found.append(Record(f"{one.path.rpartition('.')[0]}.{name}", kind, one.inputs, [whole]))
        elif last == "o_proj" or last == "down_proj":
            found.append(one._replace(kind="RowParallelLinear"))
        else:
            found.append(one)
    return found


def _stored(values: np.ndarray, style: Style) -> Tensor:
    values = np.ascontiguousarray(values)
    if values.dtype.kind == "f":
        return Tensor(values.astype(np.float32), style.dtype, 0)
    return Tensor(values, str(values.dtype), 0)


def _write_npy(place: Path, tensors: Sequence[Tensors], style: Style) -> None:
    place.mkdir(parents=True)
    for one, inputs, outputs, more in tensors:
        for role, some in (("input", [*inputs, *more.values()]), ("output", outputs)):
            for number, values in enumerate(some):
                np.save(place / f"{one.path}.{role}.{number}.npy", _stored(values, style).values)


def _write_msprobe(place: Path, tensors: Sequence[Tensors], style: Style, fused: bool) -> None:
    folder = place / "dump_tensor_data"
    folder.mkdir(parents=True)
    data = {}

    def leaf(values: np.ndarray, name: str) -> dict[str, Any]:
        tensor = _stored(values, style)
        found: dict[str, Any] = {"type": "torch.Tensor", "dtype": f"torch.{tensor.dtype}", "shape": list(values.shape)}
        found |= statistics(tensor)
        if style.form != "statistics":
            ending = style.ending if style.dtype != "bfloat16" else "pt"
            found["data_name"] = f"{name}.{ending}"
            (folder / found["data_name"]).write_bytes(pt(tensor) if ending == "pt" else npy(tensor))
        return found

    for one, inputs, outputs, more in tensors:
        name = f"Module.{one.path}.{one.kind}.forward.0"
        data[name] = {
            "input_args": [leaf(values, f"{name}.input.{at}") for at, values in enumerate(inputs)],
            "input_kwargs": {key: leaf(values, f"{name}.input.{key}") for key, values in more.items()},
            "output": [leaf(values, f"{name}.output.{at}") for at, values in enumerate(outputs)],
        }
    top = {"task": "statistics" if style.form == "statistics" else "tensor", "level": "L0", "framework": "pytorch",
           "dump_data_dir": "dump_tensor_data", "data": data}  # fmt: skip
    place.joinpath("dump.json").write_text(json.dumps(top))
    place.joinpath("stack.json").write_text("{}")
    place.joinpath("construct.json").write_text(json.dumps(dict.fromkeys(data)))


__all__ = ["Arrays", "Style", "write"]
