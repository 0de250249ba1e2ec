"""What the writers of the corpus leave on disk, read by npucmp: every tensor is there, under its name, with its values.

The net: linear, layer_norm, relu and a softmax in bfloat16, and their backwards.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import npucmp
from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.writers import cann, mindspore

WRITERS = pytest.mark.parametrize("writer", [cann, mindspore], ids=lambda writer: writer.NAME)
NAMES = {
    "cann": [
        "fc/MatMulV2-op0", "norm/LayerNorm-op0", "Relu-op0", "head/SoftmaxV2-op0",
        "Gradients/head/SoftmaxGrad-op0", "Gradients/ReluGrad-op0", "Gradients/norm/LayerNormGrad-op0",
        "Gradients/fc/MatMulV2Grad-op0",
    ],
    "mindspore": [
        "Default_network-Net_fc-Linear_Dense-op0", "Default_network-Net_norm_LayerNorm-op0",
        "Default_network-Net_ReLU-op0", "Default_network-Net_head_Softmax-op0",
        "Gradients_Default_network-Net_head_Grad_Softmax_SoftmaxGrad-op0",
        "Gradients_Default_network-Net_Grad_ReLU_ReluGrad-op0",
        "Gradients_Default_network-Net_norm_Grad_LayerNorm_LayerNormGrad-op0",
        "Gradients_Default_network-Net_fc-Linear_Grad_Dense_DenseGrad-op0",
    ],
}  # fmt: skip


def net(step=0, fault=1.0):
    """A step of the net, whose layer_norm is `fault` times too large."""
    rng = np.random.default_rng(step)
    made = []

    def tensor(values, dtype="float32", **more):
        values = np.asarray(values, np.float32)
        if dtype == "bfloat16":
            values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        made.append(Tensor(values, dtype, 100 * step + len(made), **more))
        return made[-1]

    x, weight, grad = tensor(rng.normal(size=(4, 6))), rng.normal(size=(8, 6)), rng.normal(size=(4, 8))
    weight, bias = tensor(weight, parameter="fc.weight"), tensor(rng.normal(size=8), parameter="fc.bias")
    gain, shift = tensor(np.full(8, 1.5), parameter="norm.weight"), tensor(np.full(8, 0.5), parameter="norm.bias")
    h = tensor(x.values @ weight.values.T + bias.values)
    scale = 1 / np.sqrt(h.values.var(1, keepdims=True) + 1e-5)
    normal = (h.values - h.values.mean(1, keepdims=True)) * scale
    n = tensor((normal * gain.values + shift.values) * fault)
    r = tensor(np.maximum(n.values, 0))
    p = tensor(np.exp(r.values) / np.exp(r.values).sum(1, keepdims=True), "bfloat16")
    gp = tensor(grad, "bfloat16")
    gr = tensor(p.values * (gp.values - (gp.values * p.values).sum(1, keepdims=True)))
    gn = tensor(gr.values * (n.values > 0))
    gg, gs = tensor((gn.values * normal).sum(0)), tensor(gn.values.sum(0))
    inner = gn.values * gain.values
    inner = inner - inner.mean(1, keepdims=True) - normal * (inner * normal).mean(1, keepdims=True)
    gh = tensor(inner * scale)
    gw, gb = tensor(gh.values.T @ x.values), tensor(gh.values.sum(0))
    records = (
        Record("Module", "forward", 0, "fc", (x,), (h,), class_name="Linear"),
        Record("linear", "forward", 0, "fc", (x, weight, bias), (h,)),
        Record("layer_norm", "forward", 0, "norm", (h, [8]), (n,), {"weight": gain, "bias": shift, "eps": 1e-5}),
        Record("relu", "forward", 0, "", (n,), (r,)),
        Record("softmax", "forward", 0, "head", (r, -1), (p,)),
        Record("softmax", "backward", 0, "head", (gp,), (gr,)),
        Record("relu", "backward", 0, "", (gr,), (gn,)),
        Record("layer_norm", "backward", 0, "norm", (gn,), (gh, gg, gs)),
        Record("linear", "backward", 0, "fc", (gh,), (None, gw, gb)),
    )
    slots = [
        ((x, weight, bias), (h,)), ((h, gain, shift), (n,)), ((n,), (r,)), ((r,), (p,)),
        ((gp, r, p), (gr,)), ((gr, n, r), (gn,)), ((gn, h, gain, shift, n), (gh, gg, gs)),
        ((gh, x, weight, bias, h), (gw, gb)),
    ]  # fmt: skip
    return Run(records, step), slots


def compared(writer, tmp_path, target, golden):
    writer.write(tmp_path / "target", target)
    writer.write(tmp_path / "golden", golden)
    return npucmp.compare(tmp_path / "target", tmp_path / "golden", jobs=1)


def held(tensor):
    """The values that a dump holds, by numpy alone."""
    if tensor.payload is None or tensor.file.endswith(".npy"):
        return np.load(tensor.file)
    place, stored = tensor.payload, {"bfloat16": "<u2", "float32": "<f4"}[tensor.dtype]
    values = np.fromfile(place.path, stored, int(np.prod(tensor.shape)), offset=place.offset).reshape(tensor.shape)
    return values if stored == "<f4" else (values.astype(np.uint32) << 16).view(np.float32)


@WRITERS
def test_every_tensor_comes_back(writer, tmp_path):
    steps = [net(0), net(1)]
    report = compared(writer, tmp_path, *[[run for run, _ in steps]] * 2)
    assert not report.roots and not report.unpaired
    assert [(one.target.format, one.target.step, one.target.rank) for one in report.comparisons] == [
        (writer.NAME, 0, 0),
        (writer.NAME, 1, 0),
    ]
    for one, (_, slots) in zip(report.comparisons, steps):
        wanted = {
            (name, f"{role}:{i}"): tensor
            for name, sides in zip(NAMES[writer.NAME], slots)
            for role, some in zip(("input", "output"), sides)
            for i, tensor in enumerate(some)
        }
        assert [operator.name for operator in one.target.operators] == NAMES[writer.NAME]
        assert {(finding.pair.operator.name, finding.pair.slot) for finding in one.findings} == wanted.keys()
        for finding in one.findings:
            tensor, moments = finding.pair.target, finding.measurement.moments
            expected = wanted[finding.pair.operator.name, finding.pair.slot]
            assert finding.verdict.value == "match" and moments.equal == moments.elements == expected.values.size
            assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.values.shape)
            assert np.array_equal(held(tensor), expected.values)


@WRITERS
def test_the_operator_with_the_fault_comes_first(writer, tmp_path):
    report = compared(writer, tmp_path, [net(0, 1.01)[0], net(1)[0]], [net(0)[0], net(1)[0]])
    root = report.roots[0]
    assert (root.pair.operator.name, root.cause.value, root.slot) == (NAMES[writer.NAME][1], "BORN", "output:0")
    assert [len(one.roots) > 0 for one in report.comparisons] == [True, False]


def test_the_graph_is_found_and_tells_what_is_read(tmp_path):
    report = compared(cann, tmp_path, [net(0)[0], net(1)[0]], [net(0)[0], net(1)[0]])
    assert len(list((tmp_path / "target").glob("ge_proto_*_Build.txt"))) == 1  # both steps have one structure
    read = {
        f"{finding.pair.operator.name} {finding.pair.slot}": finding.pair.target.source
        for finding in report.comparisons[1].findings
    }
    assert {key: read[key] for key in read if key.startswith(("fc", "norm", "Gradients/norm")) and "input" in key} == {
        "fc/MatMulV2-op0 input:0": "fc/MatMulV2-op0/arg0:0",
        "fc/MatMulV2-op0 input:1": "fc/weight:0",
        "fc/MatMulV2-op0 input:2": "fc/bias:0",
        "norm/LayerNorm-op0 input:0": "fc/MatMulV2-op0:0",
        "norm/LayerNorm-op0 input:1": "norm/weight:0",
        "norm/LayerNorm-op0 input:2": "norm/bias:0",
        "Gradients/norm/LayerNormGrad-op0 input:0": "Gradients/ReluGrad-op0:0",
        "Gradients/norm/LayerNormGrad-op0 input:1": "fc/MatMulV2-op0:0",
        "Gradients/norm/LayerNormGrad-op0 input:2": "norm/weight:0",
        "Gradients/norm/LayerNormGrad-op0 input:3": "norm/bias:0",
        "Gradients/norm/LayerNormGrad-op0 input:4": "norm/LayerNorm-op0:0",
    }
    assert read["Gradients/fc/MatMulV2Grad-op0 input:0"] == "Gradients/norm/LayerNormGrad-op0:0"


@WRITERS
def test_what_was_not_recorded_is_not_written(writer, tmp_path):
    run, _ = net()
    hidden = {2: {"given": False}, 3: {"told": False}, 4: {"given": False, "told": False}}
    records = tuple(replace(record, **hidden.get(i, {})) for i, record in enumerate(run.records))
    writer.write(tmp_path, [replace(run, records=records)])
    [found] = npucmp.open_runs(tmp_path)
    slots = {operator.name: [tensor.slot for tensor in operator.tensors] for operator in found.operators}
    names = NAMES[writer.NAME]
    assert slots[names[1]] == ["output:0"] and slots[names[2]] == ["input:0"] and names[3] not in slots
    assert len(slots[names[4]]) == 4  # its own side of what the forward hides is recorded


@WRITERS
def test_types_and_ranks(writer, tmp_path):
    values = {
        "float64": np.array(1e-300), "float16": np.array([[0.1, np.inf]], np.float16).astype(np.float32),
        "int64": np.array([-(2**40), 7]), "bool": np.array([True, False, True]),
        "float32": np.zeros((0, 3), np.float32), "bfloat16": np.array([1.5, -np.inf, np.nan], np.float32),
    }  # fmt: skip
    tensors = [Tensor(one, dtype, key) for key, (dtype, one) in enumerate(values.items())]
    run = Run((Record("cat", "forward", 0, "", (tensors, 1), (tensors[0],)),), 3, 5)
    writer.write(tmp_path, [run, replace(run, rank=6)])
    first, second = npucmp.open_runs(tmp_path)
    assert (first.step, first.rank, second.rank) == (3, 5, 6)
    read = [one for one in first.operators[0].tensors if not one.is_output]
    assert not any(one.problem for one in read)
    assert [one.shape for one in read] == [one.shape for one in values.values()]
    assert [one.dtype for one in read] == list(values)
    report = npucmp.compare(tmp_path, tmp_path, jobs=1)
    assert {finding.verdict.value for finding in report.findings} == {"match"}
    sides = [finding.measurement.moments.golden for finding in report.comparisons[0].findings]
    assert [side.minimum for side in sides if side.minimum == side.minimum][:2] == [1e-300, np.float16(0.1)]
    assert {(side.nan, side.neginf) for side in sides} >= {(1, 1)} and [side.posinf for side in sides].count(1) == 1


@WRITERS
def test_one_more_operator_shifts_names_of_its_own_scope_only(writer, tmp_path):
    run, _ = net()
    values = Tensor(np.ones(8, np.float32), "float32", 1000)
    more = tuple(Record(run.records[1].kind, "forward", 1, scope, (values,), (values,)) for scope in ("", "head"))
    writer.write(tmp_path, [replace(run, records=(*more, *run.records))])
    [found] = npucmp.open_runs(tmp_path)
    assert [operator.name for operator in found.operators][2:] == NAMES[writer.NAME]


@WRITERS
def test_times_tell_the_order_of_execution(writer, tmp_path):
    writer.write(tmp_path, [net()[0]])
    names = [path.name.split(".") for path in tmp_path.rglob("*-op[0-9]*.*") if path.is_file()]
    in_time = dict.fromkeys(name[1] for name in sorted(names, key=lambda name: int(name[4])))
    assert list(in_time) == [name.replace("/", "_") for name in NAMES[writer.NAME]]


def test_the_order_of_execution_holds_full_names(tmp_path):
    run, _ = net()
    mindspore.write(tmp_path, [run, net(1)[0], replace(run, records=run.records[:4], step=2)])
    lists = [(tmp_path / f"rank_0/execution_order/ms_execution_order_graph_{i}.csv").read_text() for i in range(2)]
    assert lists[0].splitlines()[0] == "NodeExecutionOrder-FullNameWithScope"
    assert [line.replace("/", "_") for line in lists[0].splitlines()[1:]] == NAMES["mindspore"]
    assert lists[1].splitlines() == lists[0].splitlines()[:4]
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("rank_0/Net/*/*")) == [
        "rank_0/Net/0/0",
        "rank_0/Net/0/1",
        "rank_0/Net/1/2",
    ]


def test_writers_share_nothing_with_what_reads_them():
    files = sorted(Path(cann.__file__).parent.glob("*.py"))
    assert len(files) >= 4
    for file in files:
        nodes = list(ast.walk(ast.parse(file.read_text())))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        roots = {name.partition(".")[0] for name in names}
        assert roots.isdisjoint({"npucmp", "ml_dtypes", "google"}), file.name
        assert all(name.startswith("tests.corpus") for name in names if name.startswith("tests")), file.name
