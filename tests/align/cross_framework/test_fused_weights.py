"""vLLM's fused products against those of transformers: views, axes, faults that are found, layouts not guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp.align.cross_framework.weight_match import FusedGroup, views_of
from npucmp.align.cross_framework.weight_match import _merged_statistics as joined
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.values import blocks
from npucmp.model import Operator, Statistics, TensorRef
from tests.align.cross_framework.twins import HIDDEN, INNER, KV, Q, Record, msprobe, transformers, vllm
from tests.dump.formats.pt_files import save_pt

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


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_a_copy_agrees(tmp_path, turned, weights):
    both = (transformers(), vllm()) if turned else (vllm(), transformers())
    report = compared(tmp_path, *both, weights=weights)
    assert (report.roots, report.exit_status) == ((), 2)  # activations and attention have no partner
    assert {verdict.value for verdict in report.verdicts} == {"match", "missing"}
    assert report.comparisons[0].matched == {"name": 10, "parts": 10 if turned else 4}
    assert {name.partition(".")[2] for name in missing(report)} == {
        "self_attn.attn",
        "mlp.act_fn",
        "LlamaDecoderLayer.forward",
    }


@pytest.mark.few(4)
@pytest.mark.parametrize("part", ROWS)
@pytest.mark.parametrize("weights", [False, True])
def test_a_fault_in_a_part_names_the_product(tmp_path, part, weights):
    whole = QKV if part[0] == "0" else GATE_UP
    name = f"{part[0]}.{whole.rpartition('.')[2]}"
    report = compared(tmp_path, vllm(bent(part, name)), transformers(), weights=weights)
    operator, slot, cause, births = first(report)
    assert (operator.startswith(f"Module.{whole}."), slot) == (True, f"output:0.{part[2:]}")
    assert (cause, births, report.exit_status) == ("BORN", 1, 1)


@pytest.mark.parametrize("part", ["0.k_proj", "1.up_proj"])
def test_a_fault_of_a_target_that_has_the_parts(tmp_path, part):
    report = compared(tmp_path, transformers(bent(part)), vllm())
    operator, slot, cause, births = first(report)
    assert f".{part[2:]}.Linear" in operator and (slot, cause, births) == ("output:0", "BORN", 1)


def test_the_axis_of_the_cut_is_told(tmp_path):
    report = compared(tmp_path, vllm(), transformers())
    told = {f.pair.slot: f.pair.target.label.partition(" ")[2] for f in report.comparisons[0].findings
            if f.pair.via == "parts" and QKV in f.pair.operator.name}  # fmt: skip
    assert told == {
        "input:0": "",
        **{f"output:0.{name}": f"[axis 1: {a} to {b}]"
           for name, (a, b) in (("q_proj", (0, 16)), ("k_proj", (16, 24)), ("v_proj", (24, 32)))},
        **{f"param:weight.{name}": f"[axis 0: {a} to {b}]"
           for name, (a, b) in (("q_proj", (0, 16)), ("k_proj", (16, 24)), ("v_proj", (24, 32)))},
    }  # fmt: skip
    assert any("cut along axis 1" in note for note in report.comparisons[0].notes)


@pytest.mark.parametrize("weights", [False, True])
def test_interleaved_heads_are_not_taken_for_others(tmp_path, weights):
    report = compared(tmp_path, vllm(interleaved=True), transformers(), weights=weights)
    assert report.comparisons[0].matched == {"name": 10, "parts": 2}  # gate and up are as they were
    whole = missing(report)["0.self_attn.qkv_proj"]
    assert all(f"layers.0.self_attn.{name}." in whole for name in ("q_proj", "k_proj", "v_proj")) and "values" in whole
    assert "qkv_proj" in missing(report)["0.self_attn.k_proj"]


def test_a_product_of_other_weights_never_agrees(tmp_path):
    def drawn(x: np.ndarray) -> np.ndarray:
        return np.random.default_rng(1).standard_normal(x.shape)

    other = [
        one._replace(outputs=tuple(map(drawn, one.outputs)), weights={"weight": drawn(one.weights["weight"])})
        if "qkv" in one.name
        else one
        for one in vllm()
    ]
    report = compared(tmp_path, other, transformers())
    assert "1.self_attn.qkv_proj" in missing(report) and report.comparisons[0].matched["parts"] == 2


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


@pytest.mark.parametrize("shape, shapes, axis, fits", [
    ((6, 32), [(6, 16), (6, 8), (6, 8)], 1, True),
    ((6, 32), [(2, 3, 16), (2, 3, 8), (2, 3, 8)], 1, True),
    ((2, 3, 32), [(6, 16), (6, 8), (6, 8)], 2, True),
    ((32, 5), [(16, 5), (8, 5), (8, 5)], 0, True),
    ((32,), [(16,), (16,)], 0, True),
    ((6, 32), [(6, 16), (6, 8), (6, 9)], 1, False),
    ((6, 32), [(5, 16), (5, 8), (5, 8)], 1, False),
    ((18, 16), [(6, 16), (6, 16), (6, 16)], 1, False),  # along the tokens: another axis than the product's
    ((32, 5), [(16, 4), (16, 4)], 0, False),
    ((32,), [(), ()], 0, False),
    ((), [(), ()], 0, False),
])  # fmt: skip
def test_views(tmp_path, shape, shapes, axis, fits):
    values = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    np.save(tmp_path / "x.npy", values)
    whole = TensorRef("output:0", "float32", shape, str(tmp_path / "x.npy"), "npy", label="x")
    views = views_of(whole, shapes, axis, ANYWHERE)
    assert bool(views) == fits
    ends = np.cumsum([0, *(one[axis if axis == 0 else -1] for one in shapes)]) if fits else []
    for view, start, end in zip(views, ends, ends[1:]):
        wanted = values.take(range(start, end), axis)
        assert view.payload.path == whole.file and view.shape == wanted.shape
        assert np.array_equal(np.concatenate([*blocks(view.payload)]), wanted.reshape(-1))


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


def test_one_world_is_lined_up_as_ever(tmp_path):
    report = compared(tmp_path, vllm(), vllm(bent("0.k_proj", "0.qkv_proj")))
    assert set(report.comparisons[0].matched) == {"name"} and HIDDEN == 16


@pytest.mark.parametrize(
    "own, other, is_partner",
    [
        ((6, HIDDEN), (6, HIDDEN), True),
        ((6, HIDDEN), (6, 5), False),
        ((6, HIDDEN), (6,), True),  # one number for each token, as ids and positions are
        ((6,), (6, 5), True),
        ((6,), (5,), True),
    ],
)
def test_modules_of_one_path_that_read_another_width_are_no_partners(tmp_path, own, other, is_partner):
    random = np.random.default_rng(8)
    out = random.standard_normal((6, HIDDEN))
    records = [
        [*world(), Record("model.mixer", "Mixer", (random.standard_normal(shape),), (out,))]
        for world, shape in ((transformers, own), (vllm, other))
    ]
    notes = {name: note for name, note in missing(compared(tmp_path, *records)).items() if "ixer" in name}
    assert bool(notes) is not is_partner
    assert is_partner or f"it reads [6, 5], this operator [6, {HIDDEN}]" in next(iter(notes.values()))
