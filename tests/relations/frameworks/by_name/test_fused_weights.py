"""vLLM's fused products against those of transformers: views, axes, faults that are found, layouts not guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp.model import Operator, Statistics, TensorRef
from npucmp.relations.frameworks.by_name.weight_match import FusedGroup
from npucmp.relations.frameworks.by_name.weight_match import _merged_statistics as joined
from tests.dump.formats.pt_files import save_pt
from tests.relations.frameworks.by_name.twins import INNER, KV, Q, Record, msprobe, transformers, vllm

QKV, GATE_UP = "model.layers.0.self_attn.qkv_proj", "model.layers.1.mlp.gate_up_proj"
ROWS = {"0.q_proj": (0, Q), "0.k_proj": (Q, Q + KV), "0.v_proj": (Q + KV, Q + 2 * KV),
        "1.gate_proj": (0, INNER), "1.up_proj": (INNER, 2 * INNER)}  # fmt: skip


def bent(part: str, whole: str = "", by: float = 1.1):
    """A wrong product: a part by itself, or these columns of the whole."""

    def wrong(name: str, x: np.ndarray) -> np.ndarray:
        if name == whole:
            x = x.copy()
            x[:, slice(*ROWS[part])] *= by
        return x * by if name == part and not whole else x

    return wrong


def compared(tmp_path: Path, target: list[Record], golden: list[Record], task="tensor", weights=True, **options):
    for name, records in (("target", target), ("golden", golden)):
        msprobe(tmp_path / name, records, task, weights)
    return npucmp.compare(tmp_path / "target", tmp_path / "golden", precheck=False, **options)


def first(report) -> tuple[str, str, str, int]:
    """Name, slot and cause of the first root, and how many roots are no consequence of others."""
    root, births = report.roots[0], sum(one.cause.value != "PROPAGATED" for one in report.roots)
    wrong = (one.pair for some in report.comparisons for one in some.findings if one.verdict.value == "diverged")
    slot = next(pair.slot for pair in wrong if pair.order == root.pair.order and pair.slot.startswith("output"))
    return root.pair.operator.name, slot, root.cause.value, births


def missing(report) -> dict[str, str]:
    """Why operators have no partner, by the end of their paths."""
    alone = (f.pair for one in report.comparisons for f in one.findings if not (f.pair.target_op and f.pair.golden_op))
    return {".".join(pair.operator.name.split(".")[3:6]): pair.note for pair in alone}


def test_a_shard_is_no_whole(tmp_path):
    """One rank of two has half of each part."""
    half = [
        one._replace(outputs=(one.outputs[0][:, : Q // 2 + KV],), weights={}) if "qkv" in one.name else one
        for one in vllm()
    ]
    report = compared(tmp_path, half, transformers())
    assert "16 + 8 + 8 columns do not add up to 16" in missing(report)["0.self_attn.qkv_proj"]


def test_statistics_of_parts_are_those_of_the_whole(tmp_path):
    report = compared(tmp_path, vllm(), transformers(), task="statistics", trust_statistics=True)
    assert (report.exit_status, report.comparisons[0].matched) == (2, {"name": 10, "parts": 4})
    assert report.roots == () and not report.tally.undecided
    (tmp_path / "again").mkdir()
    report = compared(tmp_path / "again", vllm(bent("0.k_proj", "0.qkv_proj")), transformers(), task="statistics")
    assert QKV in report.roots[0].pair.operator.name


def test_joined_statistics():
    parts = [np.random.default_rng(seed).standard_normal((2, 3, size)) for seed, size in enumerate((4, 2, 6))]
    whole = np.concatenate(parts, axis=2).reshape(6, 12)

    def operator(x: np.ndarray) -> Operator:
        figures = Statistics(x.max(), x.min(), x.mean(), np.sqrt((x * x).sum()))
        return Operator("m", "m", "m", "forward", 0, (TensorRef("output:0", "float32", x.shape, statistics=figures),))

    own, found = joined(FusedGroup(operator(whole), tuple(map(operator, parts)), False, ("q", "k", "v")))
    assert found.shape == own.shape == (6, 12)
    assert np.allclose(found.statistics, own.statistics, rtol=1e-12)
    assert joined(FusedGroup(operator(whole[:, 1:]), tuple(map(operator, parts)), False, ("q", "k", "v"))) is None


def acl(folder: Path, records: list[Record]) -> Path:
    """msprobe's AclGraphDumper: calls counted by module, and no order."""
    for one in records:
        for role, some in (("input", one.inputs), ("output", one.outputs)):
            for at, x in enumerate(some):
                name = f"Module.{one.name}.{one.kind}.0.{role}.{at}.pt"
                save_pt(folder / "step0" / "rank0" / "dump_tensor_data" / name, np.ascontiguousarray(x, np.float32))
    return folder / "step0"


def hooked(folder: Path, records: list[Record]) -> Path:
    """msit's torch hook: no classes, no order."""
    for one in records:
        for role, some in (("input", one.inputs), ("output", one.outputs)):
            for at, x in enumerate(some):
                file = folder / "torch_tensors" / "npu0_7" / "0" / f"root.{one.name}" / f"{role}_{at}.pth"
                save_pt(file, np.ascontiguousarray(x, np.float32))
    return folder


@pytest.mark.parametrize("write", [acl, hooked])
def test_folders_of_files_against_a_dump(tmp_path, write):
    golden = msprobe(tmp_path / "golden", transformers())
    wrong = write(tmp_path / "wrong", vllm(bent("0.k_proj", "0.qkv_proj")))
    assert QKV in (found := first(npucmp.compare(wrong, golden)))[0] and found[1:] == ("output:0.k_proj", "BORN", 1)
    right = npucmp.compare(write(tmp_path / "right", vllm()), golden, coverage=0.5)
    assert right.exit_status == 0 and right.coverage.tensors  # activations and attention have no partner
