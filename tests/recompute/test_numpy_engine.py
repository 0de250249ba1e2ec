"""Operators of graphs, from the dump to the verdict: TensorFlow's, GE's and MindSpore's."""

import importlib.util
import math
import re
from pathlib import Path

import numpy as np
import pytest

from npucmp import open_runs, replay
from npucmp.model import ReplayVerdict
from npucmp.recompute import torch_engine
from tests.recompute.craft import Dump
from tests.recompute.graphs import GraphDump
from tests.recompute.kernels import exp, matmul, softmax

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
F32 = np.float32


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


def found(sample, **options):
    """Guilty operators, and the statuses of all rows."""
    result = replay(SAMPLES / sample, jobs=1, **options)
    names = [one.operators[row.order].name for one in result.replays for row in one.guilty]
    return result, names, {row.status for row in result.rows}


def test_the_fused_addition_is_guilty_without_a_golden():
    """Its originals' names tell that it adds and takes the positive part; folded constants are nowhere."""
    result, names, statuses = found("cann_fusion_pass/target")
    assert names == ["net/block_0/addnet/block_0/Relu"] and result.exit_status == 1
    assert statuses == {"replayed", "no data"}
    assert {row.verdict for row in result.rows} == {ReplayVerdict.GUILTY, ReplayVerdict.CLEAN, ReplayVerdict.UNKNOWN}
    folded = {row.explanation for row in result.rows if row.status == "no data"}
    assert folded == {"its folded constants are not among its inputs"}
    result, names, _ = found("cann_fusion_pass/golden")
    assert names == [] and sum(row.verdict is ReplayVerdict.CLEAN for row in result.rows) == 35


def test_what_was_left_out_is_told_by_type():
    lines = str(found("cann_fusion_pass/target")[0]).splitlines()
    told = [line for line in lines if line.startswith("not replayed")]
    assert told == ["not replayed: no data: 5 of Conv2D: its folded constants are not among its inputs"]


def test_torch_alone_says_that_it_knows_no_graphs():
    pytest.importorskip("torch")
    result, _, statuses = found("cann_fusion_pass/target", engine="torch")
    assert statuses == {"not in table"} and result.exit_status == 2
    assert {row.explanation for row in result.rows} == {"torch replays recorded calls, not operators of graphs"}


def test_a_clean_device_and_one_whose_fault_is_where_constants_are_folded():
    for sample in ("cann_clean/target", "cann_fused_conv/target"):
        result, names, _ = found(sample)
        assert names == [] and sum(row.verdict is ReplayVerdict.CLEAN for row in result.rows) == 16


def test_another_epsilon_than_the_graph_tells():
    """The golden's own graph serves; without one nobody knows what an output was made of."""
    result, names, _ = found("tfdbg_batch_norm/target", graph=SAMPLES / "tfdbg_batch_norm" / "golden")
    assert names == ["resnet_block_1_bn2_FusedBatchNormV3"]
    assert found("tfdbg_batch_norm/golden")[1] == []
    result, _, statuses = found("tfdbg_batch_norm/target")
    assert statuses == {"no data"} and result.exit_status == 2


def test_an_operator_of_mindspore_computes_what_it_was_told():
    result, names, _ = found("mindspore_layer_norm/target")
    assert names == [] and result.exit_status == 0
    norms = [row for row in result.rows if result.replays[0].operators[row.order].op_type == "LayerNorm"]
    assert len(norms) == 3 and {row.verdict for row in norms} == {ReplayVerdict.CLEAN}


_spec = importlib.util.spec_from_file_location("make_cann", SAMPLES / "make_cann.py")
make_cann = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_cann)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_convolution_in_the_layouts_of_a_device(tmp_path, is_told):
    """float16, NC1HWC0 and FRACTAL_Z: guilty by the attributes of the graph, in doubt without them."""
    make_cann.write_device(tmp_path, fault="net/block_0/a/Conv2D", fused=False)
    file = tmp_path / "ge_proto_00000012_graph_1_Build.txt"
    ones = "list { " + "i: 1 " * 4 + "}"
    told = "".join(f' attr {{ key: "{key}" value {{ {ones} }} }}' for key in ("strides", "pads", "dilations"))
    if is_told:
        file.write_text(re.sub(r'(type: "Conv2D" id: \d+)', rf"\1{told}", file.read_text()))
    result = replay(tmp_path, jobs=1)
    operators = result.replays[0].operators
    convolutions = {operators[row.order].name: row for row in result.rows if operators[row.order].op_type == "Conv2D"}
    verdicts = {name: row.verdict for name, row in convolutions.items()}
    clean = {"net/conv1/Conv2D": ReplayVerdict.CLEAN, "net/block_0/b/Conv2D": ReplayVerdict.CLEAN}
    assert verdicts == {**clean, "net/block_0/a/Conv2D": ReplayVerdict.GUILTY if is_told else ReplayVerdict.UNKNOWN}
    assert [operators[row.order].name for row in result.replays[0].guilty] == ["net/block_0/a/Conv2D"] * is_told


def network(folder, **faults):
    """A small network in float32, each operator by plain numpy; a fault multiplies a tenth of an output."""

    def spoilt(name, array):
        array = np.array(array, dtype=F32)
        array.reshape(-1)[: max(1, array.size // 10)] *= faults.get(name, F32(1))
        return array

    dump = GraphDump(folder)
    x, w = normal(2, 6, 5, 3), normal(3, 3, 3, 4, seed=2)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    flat = np.concatenate([padded[:, i : i + 6, j : j + 5] for i in range(3) for j in range(3)], axis=-1)
    y = matmul(flat.reshape(-1, 27), w.reshape(27, 4), block=9).reshape(2, 6, 5, 4)
    told = {"strides": [1, 1, 1, 1], "padding": "SAME", "data_format": "NHWC"}
    dump.add("conv", "Conv2D", [x, w], [y := spoilt("conv", y)], **told)
    constants = normal(4, seed=3), normal(4, seed=4), normal(4, seed=5), normal(4, seed=6) ** 2
    gamma, beta, mean, variance = constants
    z = (y - mean) * (gamma / np.sqrt(variance + F32(1e-3))) + beta
    dump.add("norm", "FusedBatchNormV3", ["conv", *constants], [z := spoilt("norm", z)], epsilon=1e-3,
             is_training=False, data_format="NHWC")  # fmt: skip
    dump.add("relu", "Relu", ["norm"], [z := spoilt("relu", np.maximum(z, 0))])
    dump.add("mean", "Mean", ["relu", (1, 2)], [m := spoilt("mean", z.mean(axis=(1, 2)))], keep_dims=False)
    dump.add("dense", "MatMul", ["mean", b := normal(4, 8, seed=7)], [d := spoilt("dense", matmul(m, b, block=2))])
    dump.add("soft", "Softmax", ["dense"], [spoilt("soft", softmax(d, exp))])
    return dump


def test_a_clean_network(tmp_path):
    rows = network(tmp_path).rows()
    assert {name: (row.verdict, row.budget) for name, row in rows.items()} == {
        "conv": (ReplayVerdict.CLEAN, "walk"),
        "norm": (ReplayVerdict.CLEAN, "noise"),
        "relu": (ReplayVerdict.CLEAN, "exact"),
        "mean": (ReplayVerdict.CLEAN, "noise"),
        "dense": (ReplayVerdict.CLEAN, "walk"),
        "soft": (ReplayVerdict.CLEAN, "noise"),
    }
    assert all(row.rms_ratio <= 1.7 for row in rows.values())


@pytest.mark.parametrize("name", ["conv", "norm", "relu", "mean", "dense", "soft"])
def test_the_faulty_one_alone_is_guilty(tmp_path, name):
    rows = network(tmp_path, **{name: F32(1.0005)}).rows()
    assert [one for one, row in rows.items() if row.verdict is ReplayVerdict.GUILTY] == [name]


def test_shares_computed_in_half_precision_are_a_setting_where_all_are(tmp_path):
    def shares(folder, coarse):
        dump = GraphDump(folder)
        for at in range(4):
            x = normal(16, 48, seed=at)
            how = (lambda one: np.exp(one.astype("f2")).astype(F32)) if at in coarse else exp
            dump.add(f"net{at}/Softmax".replace("/", "_"), "Softmax", [x], [softmax(x, how)])
        return dump

    every = shares(tmp_path / "all", range(4)).replays()
    assert every.exit_status == 0
    assert every.replays[0].peers[0].startswith("all 4 Softmax output:0 exceed their budget")
    assert shares(tmp_path / "one", [2]).replays().exit_status == 1
    assert shares(tmp_path / "one", [2]).replays(budget_from=tmp_path / "all").exit_status == 0


def test_float16_and_truncation(tmp_path):
    """Half precision is judged by its own rounding; cutting off instead of rounding is told by the bias."""
    x, y = normal(64, 64).astype("f2"), normal(64, 64, seed=2).astype("f2")
    exact = x.astype("f8") + y
    rounded = exact.astype("f2")
    away = np.abs(rounded.astype("f8")) > np.abs(exact)
    cut = np.where(away, np.nextafter(rounded, np.float16(0)), rounded)
    dump = GraphDump(tmp_path).add("right", "AddV2", [x, y], [rounded]).add("cut", "AddV2", [x, y], [cut])
    rows = dump.rows()
    assert rows["right"].verdict is ReplayVerdict.CLEAN and rows["cut"].verdict is ReplayVerdict.GUILTY
    assert rows["cut"].bias > 0.25


def test_what_the_graph_does_not_tell_makes_nobody_guilty(tmp_path):
    x, w = normal(1, 6, 6, 2), normal(3, 3, 2, 2, seed=2)
    y = normal(1, 6, 6, 2, seed=3)
    row = GraphDump(tmp_path).add("c", "Conv2D", [x, w], [y], data_format="NHWC").rows()["c"]
    assert (row.status, row.verdict) == ("replayed", ReplayVerdict.UNKNOWN)
    assert row.explanation == "the graph has no strides for it, 1 was assumed; the graph has no pads for it"


def test_an_operator_that_overwrote_what_it_read(tmp_path):
    before, gradient = normal(8), normal(8, seed=2)
    after = before - F32(0.5) * gradient
    dump = GraphDump(tmp_path)
    dump.add("late", "AssignSub", [after, F32(0.5) * gradient], [after])
    dump.add("early", "AssignSub", [before, F32(0.5) * gradient], [after])
    rows = dump.rows()
    assert (rows["late"].status, rows["late"].verdict) == ("overwritten", ReplayVerdict.UNKNOWN)
    assert (rows["early"].status, rows["early"].verdict) == ("replayed", ReplayVerdict.CLEAN)


HOSTILE = {
    "shape": ("AddV2", [normal(4), normal(4)], normal(5), {}),
    "shapes": ("AddV2", [normal(4), normal(3)], normal(4), {}),
    "pads": ("Conv2D", [normal(1, 4, 4, 1), normal(3, 3, 1, 1)], normal(1, 4, 4, 1), {"strides": [1, 10**12, 1, 1]}),
    "window": ("MaxPool", [normal(1, 4, 4, 1)], normal(1, 4, 4, 1), {"ksize": [1, 4000, 4000, 1], "padding": "SAME"}),
    "paddings": ("PadV2", [normal(4), (0, 10**9)], normal(4), {}),
    "times": ("Tile", [normal(4), (10**9,)], normal(4), {}),
    "index": ("GatherV2", [normal(4), np.array([7]), 0], normal(1), {}),
    "axes": ("Mean", [normal(4, 4), (7,)], normal(4), {}),
    "labels": ("SparseSoftmaxCrossEntropyWithLogits", [normal(2, 3), np.array([0, 9])], normal(2), {}),
    "truths": ("Sub", [np.ones(4, dtype=bool), np.ones(4, dtype=bool)], normal(4), {}),
    "text": ("LeakyRelu", [normal(4)], normal(4), {"alpha": "much"}),
    "missing": ("MatMul", [normal(4, 4)], normal(4, 4), {}),
    "unheard": ("NoSuchThing", [normal(4)], normal(4), {}),
    "random": ("RandomStandardNormal", [np.array([4])], normal(4), {}),
}


def test_each_hostile_operator_costs_itself(tmp_path):
    dump = GraphDump(tmp_path).add("right", "Abs", [normal(4)], [np.abs(normal(4))])
    for name, (op, inputs, output, told) in HOSTILE.items():
        dump.add(name, op, inputs, [output], **told)
    rows = dump.rows(limit_memory=64 << 20)
    assert rows.pop("right").verdict is ReplayVerdict.CLEAN
    assert {row.verdict for row in rows.values()} == {ReplayVerdict.UNKNOWN} and len(rows) == len(HOSTILE)
    statuses = {name: row.status for name, row in rows.items()}
    named = {"missing": "no data", "unheard": "not in table", "random": "random"}
    assert statuses == {name: named.get(name, "shape") for name in HOSTILE}
    assert all(row.explanation for row in rows.values())


def test_memory_is_limited(tmp_path):
    x, y = normal(1 << 10, 1), normal(1, 1 << 10)
    row = GraphDump(tmp_path).add("a", "AddV2", [x, y], [x + y]).rows(limit_memory=4 << 20)["a"]
    assert row.status == "too large"


@pytest.fixture()
def without_torch(monkeypatch):
    monkeypatch.setattr(torch_engine, "find_spec", lambda name: None)


def test_without_torch_calls_and_their_gradients_are_replayed(without_torch):
    result, names, statuses = found("msprobe_softmax/target")
    assert names == ["Functional.softmax.1.forward"] and result.exit_status == 1
    assert sum(row.status == "replayed" for row in result.rows) == 61 and len(result.rows) == 62
    assert statuses == {"replayed", "another autograd node"} and result.notes == ()
    assert found("msprobe_bfloat16/target")[1] == [] and found("msprobe_clean/target")[1] == []


def test_without_torch_the_rest_is_told(without_torch, tmp_path):
    dump = Dump(tmp_path).add("Torch.exp.0.forward", [np.zeros(3, F32)], [np.ones(3, F32)])
    dump.add("Torch.cumprod.0.forward", [np.ones(3, F32)], [np.ones(3, F32)], {"dim": 0})
    result = replay(dump.write(), jobs=1)
    assert [row.status for row in result.rows] == ["replayed", "not in table"]
    assert result.rows[1].explanation == "Torch.cumprod is a call that only torch can replay"
    assert result.notes == ("operators that need npucmp[replay] were not replayed: pip install -e '.[replay]'",)


def test_calls_and_their_arguments(without_torch, tmp_path):
    x, w, b = normal(2, 3, 4), normal(5, 4, seed=2), normal(5, seed=3)
    wide = x.astype("f8")
    dump = Dump(tmp_path)
    dump.add("Functional.linear.0.forward", [x, w, b], [matmul(x.reshape(6, 4), w.T, block=2).reshape(2, 3, 5) + b])
    dump.add("Torch.transpose.0.forward", [x, 0, -1], [x.transpose(2, 1, 0)])
    dump.add("Tensor.permute.0.forward", [x, 2, 0, 1], [x.transpose(2, 0, 1)])
    dump.add("Torch.sum.0.forward", [x], [x.sum()[None]], {"dim": [0, 1, 2], "keepdim": False})
    dump.add("Tensor.__mul__.0.forward", [x, 0.1], [x * F32(0.1)])
    gelu = wide / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    dump.add("Functional.gelu.0.forward", [x], [gelu.astype(F32)], {"approximate": "tanh"})
    dump.add("Functional.gelu.1.forward", [x], [gelu.astype(F32)])
    dump.add("Torch.add.0.forward", [x, x], [3 * x], {"alpha": 2})
    rows = dump.rows()
    assert [row.verdict for row in rows[:6]] == [ReplayVerdict.CLEAN] * 6
    assert rows[6].verdict is ReplayVerdict.GUILTY
    assert rows[7].verdict is ReplayVerdict.CLEAN


def test_attributes_reach_the_operators():
    (run,) = open_runs(SAMPLES / "tfdbg_batch_norm" / "golden")
    norm = next(one for one in run.operators if one.name == "resnet/block_1/bn2/FusedBatchNormV3")
    assert norm.attributes["epsilon"] == pytest.approx(1e-3) and norm.attributes["is_training"] is False
