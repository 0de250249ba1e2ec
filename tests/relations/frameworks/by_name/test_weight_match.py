"""ATB against torch: no name in common, so that weights tell which operators belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npucmp
from tests.dump.formats.pt_files import save_pt
from tests.dump.formats.test_atb import put
from tests.relations.frameworks.by_name.test_fused_weights import bent, first, hooked
from tests.relations.frameworks.by_name.twins import Record, msprobe, transformers, vllm

OPERATIONS = {
    "RMSNorm": "RmsNormOperation",
    "QKVParallelLinear": "LinearOperation",
    "Attention": "SelfAttentionOperation",
    "RowParallelLinear": "LinearParallelOperation",
    "MergedColumnParallelLinear": "LinearOperation",
    "SiluAndMul": "ActivationOperation",
}
TREE = "atb_dump_data/data/0_39943/0"


def atb(folder: Path, records: list[Record], transposed: bool = False, dtype=np.float32) -> Path:
    """Layers of operations, whose weights are inputs behind the first; `transposed`: weights as [in, out]."""
    for at, one in enumerate(one for one in records if one.kind in OPERATIONS):
        words = one.name.split(".")
        layer = int(words[2]) if words[2:] else 9
        place = folder / TREE / f"{layer}_Prefill_layer" / f"{at}_{OPERATIONS[one.kind]}"
        for index, x in enumerate((one.inputs[0], *one.weights.values(), *one.inputs[1:])):
            x = x.T if transposed and index == 1 and one.weights and x.ndim == 2 else x
            put(place / "before", f"intensor{index}.bin", np.ascontiguousarray(x, dtype))
        for index, x in enumerate(one.outputs):
            put(place / "after", f"outtensor{index}.bin", np.ascontiguousarray(x, dtype))
    return folder


def compared(tmp_path: Path, wrong=None, turned=False, **more):
    golden = msprobe(tmp_path / "golden", transformers())
    target = atb(tmp_path / "target", vllm(wrong), **more)
    return npucmp.compare(*((golden, target) if turned else (target, golden)), precheck=False)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_copy_agrees(tmp_path, turned, transposed):
    report = compared(tmp_path, turned=turned, transposed=transposed)
    matched = report.comparisons[0].matched
    assert (matched["parts"], matched["weights"], report.exit_status) == (10 if turned else 4, 9, 2), matched
    assert not {f.verdict.value for f in report.comparisons[0].findings} - {"match", "missing"}
    assert {f.pair.confidence for f in report.comparisons[0].findings if f.pair.via in ("parts", "weights")} == {0.9}


def test_norms_at_their_start_go_by_order(tmp_path):
    """Weights of ones tell nothing; what stands between products that are known does."""
    some, others = (
        [one._replace(weights={"weight": one.weights["weight"] * 0 + 1}) if "norm" in one.name else one for one in run]
        for run in (vllm(), transformers())
    )
    report = npucmp.compare(atb(tmp_path / "target", some), msprobe(tmp_path / "golden", others), precheck=False)
    assert report.comparisons[0].matched == {"parts": 4, "weights": 4, "order": 5}


def test_against_files_of_a_torch_hook(tmp_path):
    """msit's hook has weights beside the tokens."""
    golden = hooked(tmp_path / "golden", transformers())
    for one in transformers():
        for name, x in one.weights.items():
            file = tmp_path / "golden" / "torch_tensors" / "npu0_7" / "weights" / f"root.{one.name}.{name}.pth"
            save_pt(file, np.ascontiguousarray(x, np.float32))
    report = npucmp.compare(atb(tmp_path / "target", vllm(bent("0.k_proj", "0.qkv_proj"))), golden)
    assert report.comparisons[0].matched == {"parts": 4, "weights": 9} and not report.unpaired
    assert first(report) == ("0_Prefill_layer/1_LinearOperation", "output:0.k_proj", "BORN", 1)
