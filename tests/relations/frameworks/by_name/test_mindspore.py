"""MindSpore against PyTorch: by tables of names, by the vendor's own files of partners, and what stays open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import npucmp
from npucmp.model import Report

PAIR = Path(__file__).resolve().parents[4] / "shared" / "data" / "framework" / "msprobe_ms_vs_pt_ut"


class Call(NamedTuple):
    """A record of each side: names, slots of inputs (a number or a keyword), parameters; what was read and written."""

    mindspore: str
    torch: str
    inputs: tuple[tuple[str, str, np.ndarray], ...]
    outputs: tuple[np.ndarray, ...]
    parameters: tuple[tuple[str, str, np.ndarray], ...] = ()
    scopes: tuple[str, str] = ("", "")


BLOCK = (
    "Cell.net.module.layers.0.attention.Attention.forward.0",
    "Module.module.layers.0.self_attention.Attention.forward.0",
)


def calls(wrong: str = "") -> list[Call]:
    """A norm, a projection, a function within the projection's block, a layer norm whose arguments stand in another
    order, and the block; `wrong` is the end of the name of what errs in MindSpore."""
    random = np.random.default_rng(11)
    x, w, b = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 8), (8,)))
    gamma, beta = (random.standard_normal(8).astype(np.float32) for _ in range(2))

    def norm(values: np.ndarray) -> np.ndarray:
        return (values - values.mean(-1, keepdims=True)) / np.sqrt(values.var(-1, keepdims=True) + 1e-5)

    def bent(name: str, values: np.ndarray) -> np.ndarray:
        return values * np.float32(1.2) if name == wrong else values

    first = bent("norm", norm(x) * gamma + beta)
    dense = bent("dense", first @ w.T + b)
    active = bent("gelu", np.tanh(dense))
    last = bent("layer_norm", norm(active) * gamma + beta)
    place = "layers.0"
    parameters = (("gamma", "weight", gamma), ("beta", "bias", beta))
    return [
        Call(f"Cell.net.module.{place}.norm.LayerNorm.forward.0", f"Module.module.{place}.norm.LayerNorm.forward.0",
             (("0", "0", x),), (first,), parameters),
        Call(f"Cell.net.module.{place}.attention.proj.Dense.forward.0",
             f"Module.module.{place}.self_attention.proj.Linear.forward.0",
             (("0", "0", first),), (dense,), (("weight", "weight", w), ("bias", "bias", b))),
        Call("Mint.tanh.0.forward", "Torch.tanh.0.forward", (("0", "0", dense),), (active,), (), BLOCK),
        Call("Primitive.norm.LayerNorm.0.forward", "Functional.layer_norm.0.forward",
             (("0", "0", active), ("1", "2", gamma), ("2", "bias", beta)), (last,), (), BLOCK),
        Call(f"Cell.net.module.{place}.attention.out.Dense.forward.0",
             f"Module.module.{place}.self_attention.last.Linear.forward.0",
             (("0", "0", last),), (last @ w.T,), (("weight", "weight", w),)),
        Call(*BLOCK, (("0", "hidden_states", first),), (last @ w.T,)),
    ]  # fmt: skip


def write(folder: Path, side: int, some: list[Call]) -> Path:
    """dump.json, construct.json and values of one side, as msprobe's documents have them."""
    (folder / "dump_tensor_data").mkdir(parents=True)
    world, prefix = (("mindspore", "mindspore."), ("pytorch", "torch."))[side]

    def told(name: str, values: np.ndarray) -> dict[str, object]:
        np.save(folder / "dump_tensor_data" / f"{name}.npy", values)
        dtype = ("Float32", "torch.float32")[side]
        return {"type": f"{prefix}Tensor", "dtype": dtype, "shape": [*values.shape], "data_name": f"{name}.npy"}

    data, scopes = {}, {}
    for one in some:
        name = one[side]
        reads = [(slots[side], slots[2]) for slots in one.inputs]
        places = {int(slot): told(f"{name}.input.{slot}", x) for slot, x in reads if slot.isdigit()}
        args = [places.get(at, {"type": "int", "value": 8}) for at in range(max(places, default=-1) + 1)]
        data[name] = {
            "input_args": args,
            "input_kwargs": {slot: told(f"{name}.input.{slot}", x) for slot, x in reads if not slot.isdigit()},
            "output": [told(f"{name}.output.{at}", x) for at, x in enumerate(one.outputs)],
        }
        if one.parameters:
            data[name]["parameters"] = {n[side]: told(f"{name}.parameters.{n[side]}", n[2]) for n in one.parameters}
        scopes[name] = one.scopes[side] or None
    (folder / "construct.json").write_text(json.dumps(scopes))
    top = {"task": "tensor", "level": "mix", "framework": world, "data": data}
    (folder / "dump.json").write_text(json.dumps(top))
    return folder


def lined_up(report: Report) -> dict[str, tuple[str, str]]:
    pairs = (f.pair for f in report.comparisons[0].findings)
    return {p.target_op.name: (p.golden_op.name, p.via) for p in pairs if p.target_op and p.golden_op and p.via}


LAYERS = (
    "TopLayer:\n  net: module\nTransformer:\n  nothing: here\nAttention:\n  proj: dense\n  tanh: inner.activation\n"
)
CELLS = "attention.proj.Dense: self_attention.dense.Linear\n"
APIS = (
    "- {ms_api: Mint.tanh, pt_api: Torch.activation, ms_args: [0], pt_args: [0]}\n"
    "- {ms_api: Primitive.norm.LayerNorm, pt_api: Functional.layer_norm, ms_args: [0, 1, 2], pt_args: [0, 2, bias]}\n"
)


@pytest.mark.parametrize(
    "text, renamed, operator, via",
    [
        (LAYERS, {"proj.Linear": "dense.Linear"}, "Cell.net.module.layers.0.attention.proj.Dense.forward.0", "mapping"),
        (CELLS, {"proj.Linear": "dense.Linear"}, "Cell.net.module.layers.0.attention.proj.Dense.forward.0", "mapping"),
        (APIS, {"Torch.tanh": "Torch.activation"}, "Mint.tanh.0.forward", "mapping"),
        ("Mint.tanh.0.forward.input.0: Torch.activation.0.forward.input.0", {"Torch.tanh": "Torch.activation"},
         "Mint.tanh.0.forward", "mapping"),
    ],
    ids=["layers", "cells", "apis", "data"],
)  # fmt: skip
def test_a_vendors_file_tells_what_tables_cannot(tmp_path, text, renamed, operator, via):
    (tmp_path / "m.yaml").write_text(text)
    golden = [one._replace(torch=_renamed(one.torch, renamed)) for one in calls()]
    sides = write(tmp_path / "ms", 0, calls("dense")), write(tmp_path / "pt", 1, golden)
    report = npucmp.compare(*sides, mapping=tmp_path / "m.yaml", precheck=False)
    wanted = next(one.torch for one in golden if one.mindspore == operator)
    assert lined_up(report)[operator] == (wanted, via)
    assert report.roots[0].pair.operator.name == calls()[1].mindspore
    assert not [note for note in report.notes if note.startswith("mapping")]


def _renamed(name: str, renamed: dict[str, str]) -> str:
    for before, after in renamed.items():
        name = name.replace(before, after)
    return name


OF_MSPROBE = {  # what its own test wants of this pair and its layer mapping; N/A of the other three
    "Mint.logical_or.0.forward": "Tensor.__or__.0.forward",
    "Distributed.all_reduce.0.forward": "Distributed.all_reduce.0.forward",
    "word_embeddings.VocabParallelEmbedding.forward.0": "word_embeddings.VocabParallelEmbedding.forward.0",
    "Primitive.norm.RmsNorm.0.forward": "NPU.npu_rms_norm.0.forward",
    "layers.0.ParallelTransformerLayer.forward.0": "layers.0.ParallelTransformerLayer.forward.0",
    "layers.0.attention.ParallelAttention.forward.0": "layers.0.self_attention.ParallelAttention.forward.0",
    "Mint.cos.0.forward": "Torch.cos.0.forward",
    "Functional.flash_attention_score.0.forward": "NPU.npu_fusion_attention.0.forward",
    "Functional.flash_attention_score.0.backward": "NPU.npu_fusion_attention.0.backward",
}


@pytest.mark.skipif(not PAIR.is_dir(), reason="the vendor's pair is not at hand")
@pytest.mark.parametrize("mapping", [None, PAIR / "layer_mapping.yaml"])
def test_the_vendors_own_pair(mapping):
    report = npucmp.compare(PAIR / "mindspore_data", PAIR / "pytorch_data", mapping=mapping, precheck=False)
    found = lined_up(report)
    added = found.pop("Tensor.__add__.1.forward")[0]  # of two that read and wrote the same, either is right
    assert added in ("Tensor.__add__.0.forward", "Tensor.__add__.1.forward")
    assert len(found) == 9 and all(
        any(here.endswith(a) and there.endswith(b) for a, b in OF_MSPROBE.items()) for here, (there, _) in found.items()
    )
