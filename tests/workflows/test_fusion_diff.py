"""npucmp fusion-diff: a small residual network, computed in numpy as a device runs it with and without fusion.

sample_dumps/make_cann.py computes both runs in float16 and writes them as raw dumps with graph and fusion_result.json;
here one operator at a time goes wrong, graphs are taken away, and operators are split as a compiler would.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp import fusion_diff, write_reports
from npucmp.align.fused import guess_fusion
from npucmp.cli import npucmp
from npucmp.dump.graphs import load_graphs
from npucmp.dump.graphs.graph import fused_operators, groups
from npucmp.errors import UsageError
from npucmp.model import Operator, Run, TensorRef
from npucmp.report import answer_of
from npucmp.report import fusion_diff as fusion
from npucmp.report.json import summary
from tests.reports import screen, table

HERE = Path(__file__).parent
SAMPLES = HERE.parent.parent / "sample_dumps"
SAMPLE = SAMPLES / "cann_fusion_pass"
DATA = HERE.parent.parent.parent / "shared" / "data" / "cann"
shared = pytest.mark.skipif(not DATA.is_dir(), reason="the shared files are not beside this checkout")

_spec = importlib.util.spec_from_file_location("make_cann", SAMPLES / "make_cann.py")
make_cann = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_cann)

CONV_A, CONV_B = "net/block_0/a/Conv2Dnet/block_0/a/Relu", "net/block_0/b/Conv2D"
ADD, DENSE = "net/block_0/addnet/block_0/Relu", "net/dense/MatMulnet/dense/BiasAdd"
PASSES = {  # fused operator → what must be switched off
    "net/conv1/Conv2Dnet/conv1/Relu": {
        "GraphFusion": {"ConvBatchnormFusionPass": "off"},
        "UBFusion": {"TbeConvReluFusionPass": "off"},
    },
    CONV_A: {"GraphFusion": {"ConvBatchnormFusionPass": "off"}, "UBFusion": {"TbeConvReluFusionPass": "off"}},
    CONV_B: {"GraphFusion": {"ConvBatchnormFusionPass": "off"}},
    ADD: {"UBFusion": {"AddReluFusionPass": "off"}},
    DENSE: {"GraphFusion": {"MatMulBiasAddFusionPass": "off"}},
}
GRAPH = "ge_proto_00000012_graph_1_Build.txt"


def wrong(array):
    """What a faulty kernel makes of an output: 20 % too much in the first half."""
    array = array.copy()
    array[..., : array.shape[-1] // 2] *= 1.2
    return array


make_cann.Device.wrong = staticmethod(wrong)


def device(fault="", fused=True) -> list:
    return make_cann.device(width=12, fault=fault, fused=fused)


def write(folder: Path, ops, model=make_cann.MODEL, counts=True) -> Path:
    make_cann.write_ops(folder, ops, model=model)
    if counts:
        (folder / "fusion_result.json").write_text(json.dumps(make_cann.fusion_result(ops)))
    return folder


@pytest.fixture(scope="module")
def off(tmp_path_factory) -> Path:
    """The run without fusion."""
    return write(tmp_path_factory.mktemp("plain") / "off", device(fused=False), make_cann.UNFUSED)


def compared(tmp_path, off, ops, **options):
    return fusion_diff(write(tmp_path / "on", ops), off, **options)


def first(report) -> tuple[str, str]:
    root = report.roots[0]
    assert root.place == 1
    return root.cause.value, root.pair.operator.name


def rows(report) -> dict[str, dict]:
    return {row["fused_op"]: row for row in table(report, "fusion.csv")}


def split(ops, name) -> list:
    """The operators with one of them computed by two, of which the first writes nothing that the network has."""
    found = []
    for op in ops:
        if op.name == name:
            inner = make_cann.Value(op.output.array * np.float16(2), op.output.layout, f"{name}_part:0", "")
            found.append(op._replace(kind="Mul", name=f"{name}_part", output=inner, multiop=True))
            op = op._replace(kind="Halve", inputs=(inner,), multiop=True, passes=op.passes or ("SplitFusionPass",))
        found.append(op)
    return found


# What is blamed, and what is not


@pytest.mark.parametrize("fault", PASSES)
def test_one_wrong_fusion_comes_first_with_its_passes(tmp_path, off, fault):
    report = compared(tmp_path, off, device(fault))
    assert (first(report), report.exit_status) == (("BORN", fault), 1)
    assert fusion.switch(report) == PASSES[fault]
    row = rows(report)[fault]
    assert set(row["pass_name"].split(",")) == {name for kind in PASSES[fault].values() for name in kind}
    assert (row["verdict"], row["cause"]) == ("diverged", "BORN")


@pytest.mark.few(4)
@pytest.mark.parametrize("fault", [op.name for op in device() if op.name not in PASSES and op.name != "net/Softmax"])
def test_a_fault_elsewhere_is_blamed_on_no_fusion(tmp_path, off, fault):
    """TransData and Cast, which the compiler put in, and operators that are not fused, upstream and downstream."""
    report = compared(tmp_path, off, device(fault))
    assert first(report) == ("BORN", fault)
    assert fusion.switch(report) == {}
    assert "fusion is not the cause" in screen(report) and "disable " not in screen(report)


@pytest.mark.parametrize("what", ["input", "weight"])
def test_other_data_is_blamed_on_no_fusion(tmp_path, off, monkeypatch, what):
    convolutions, dense, x = make_cann.layers(1, 12, 1)
    if what == "input":
        x = wrong(x)
    else:
        convolutions["conv1"]["weight"] = wrong(convolutions["conv1"]["weight"])
    monkeypatch.setattr(make_cann, "layers", lambda *_: (convolutions, dense, x))
    report = compared(tmp_path, off, device())
    assert first(report)[0] == "GAP" and first(report)[1].startswith("trans_Cast")
    assert fusion.switch(report) == {} and "disable " not in screen(report)
    assert "fusion is not the cause" in screen(report)


def test_a_clean_pair_is_silent(tmp_path, off):
    report = compared(tmp_path, off, device())
    assert (report.roots, report.exit_status, fusion.switch(report)) == ((), 0, {})
    assert {row["verdict"] for row in rows(report).values()} == {"match"}
    assert "fused operators: 5 (5 not suspected)" in screen(report) and "next:" not in screen(report)


@pytest.mark.parametrize("fault", [ADD, CONV_B])
def test_a_wrong_fusion_that_was_not_dumped_is_named(tmp_path, off, fault):
    on = write(tmp_path / "on", device(fault))
    next(on.glob(f"*/*/*/*/*/*.{fault.replace('/', '_')}.*")).unlink()
    report = fusion_diff(on, off)
    root = report.roots[0]
    assert root.cause.value == "GAP" and f"this tensor is {fault}:0, which was not dumped" in root.because
    assert "next: dump all inputs and outputs" in screen(report) and "not the cause" not in screen(report)


def test_dumps_in_the_wrong_order_are_noticed(tmp_path, off):
    report = fusion_diff(off, write(tmp_path / "on", device()))
    assert any("were the two given in the wrong order?" in note for note in report.notes)
    assert not any("wrong order" in note for note in fusion_diff(tmp_path / "on", off).notes)


def test_two_wrong_fusions_are_both_switched_off(tmp_path, off):
    ops = {op.name: op for op in device(CONV_B)}
    bad = make_cann.Device.wrong(ops[DENSE].output.array)
    ops[DENSE] = ops[DENSE]._replace(output=ops[DENSE].output._replace(array=bad))
    report = compared(tmp_path, off, list(ops.values()))
    assert first(report) == ("BORN", CONV_B)
    assert set(fusion.switch(report)["GraphFusion"]) >= {"ConvBatchnormFusionPass"}
    assert rows(report)[DENSE]["cause"] in ("PROPAGATED", "WORSENED")  # it read what was wrong already


def test_a_pass_that_worked_in_both_runs_is_not_switched_off(tmp_path):
    on = [op._replace(passes=("EverywhereFusionPass", *op.passes)) for op in device(CONV_B)]
    plain = [op._replace(passes=("EverywhereFusionPass",)) for op in device(fused=False)]
    report = fusion_diff(write(tmp_path / "on", on), write(tmp_path / "off", plain, make_cann.UNFUSED))
    assert fusion.switch(report) == PASSES[CONV_B]


def test_a_single_operator_that_a_pass_made(tmp_path, off):
    ops = [
        op._replace(passes=("AReduceMeanFusionPass",)) if "Mean" in op.name else op for op in device("net/pool/Mean")
    ]
    report = compared(tmp_path, off, ops)
    assert first(report) == ("BORN", "net/pool/Mean")
    assert fusion.switch(report) == {"GraphFusion": {"AReduceMeanFusionPass": "off"}}


# Groups


@pytest.mark.parametrize("name", ["net/pool/Mean", DENSE], ids=["one to many", "many to many"])
@pytest.mark.parametrize("faulty", [False, True])
def test_several_operators_that_compute_the_same_originals(tmp_path, off, name, faulty):
    report = compared(tmp_path, off, split(device(name if faulty else ""), name))
    assert [first(report)] == [("BORN", name)] if faulty else report.roots == ()
    inner = [finding for finding in report.findings if finding.pair.operator.name == f"{name}_part"]
    assert {f.verdict.value for f in inner if f.pair.slot.startswith("output")} == {"unknown"}
    assert {f.verdict.value for f in inner if f.pair.slot.startswith("input")} == {"match"}
    assert "missing" not in {finding.verdict.value for finding in report.findings}
    assert report.exit_status == (1 if faulty else 0)


@pytest.mark.parametrize("name", ["net/pool/Mean", DENSE], ids=["one to many", "many to many"])
def test_such_a_group_passes_on_what_it_gets(tmp_path, off, name):
    report = compared(tmp_path, off, split(device(CONV_B), name))
    assert first(report) == ("BORN", CONV_B)
    (root,) = [root for root in report.roots if root.pair.operator.name == name]
    assert root.cause.value == "PROPAGATED"
    assert fusion.switch(report) == PASSES[CONV_B]


@pytest.mark.parametrize("fault", ["", CONV_A, CONV_B])
def test_an_l1_fusion_group(tmp_path, off, fault):
    ops = [op._replace(group="3") if op.name in (CONV_A, CONV_B) else op for op in device(fault)]
    report = compared(tmp_path, off, ops)
    assert (first(report) == ("BORN", fault)) if fault else report.roots == ()
    assert "missing" not in {finding.verdict.value for finding in report.findings}


def test_operators_fused_in_both_runs_are_compared_by_name(tmp_path):
    on, same = write(tmp_path / "on", device(DENSE)), write(tmp_path / "off", device())
    report = fusion_diff(on, same)
    assert {finding.pair.via for finding in report.findings} == {"name"}
    assert (first(report), fusion.switch(report)) == (("BORN", DENSE), {})


def test_operators_of_one_run_are_accounted_for(tmp_path, off):
    ops = [op for op in device() if op.name != "net/Softmax"]
    extra = ops[-1]._replace(kind="Extra", name="net/extra", originals=None)
    extra = extra._replace(output=extra.output._replace(name="net/extra:0", origin=""))
    report = compared(tmp_path, off, [*ops, extra])
    missing = {f.pair.operator.name for f in report.findings if f.verdict.value == "missing"}
    assert missing == {"net/extra", "net/Softmax"}
    named = {name for f in report.findings for op in (f.pair.target_op, f.pair.golden_op) if op for name in (op.name,)}
    chains = {name for op in ops for name in op.originals or ()}
    assert {op.name for op in device(fused=False) if not op.name.startswith("trans_")} <= named | chains


def test_dumps_of_outputs_alone(tmp_path, monkeypatch):
    whole = make_cann.dump
    monkeypatch.setattr(make_cann, "dump", lambda op: whole(op._replace(inputs=())))
    plain = write(tmp_path / "off", device(fused=False), make_cann.UNFUSED)
    report = fusion_diff(write(tmp_path / "on", device(ADD)), plain)
    assert first(report) == ("BORN", ADD)
    assert fusion.switch(report) == PASSES[ADD]


# Graphs


def test_graphs_can_be_named(tmp_path, off):
    on, plain = write(tmp_path / "on", device(ADD)), tmp_path / "off"
    shutil.copytree(off, plain)
    (on / GRAPH).rename(tmp_path / "with.txt")
    (plain / GRAPH).rename(tmp_path / "without.txt")
    files = [tmp_path / "with.txt", tmp_path / "without.txt"]
    for options in ({"graph": files}, {"graph": files[::-1]}, {"on_graph": files[:1], "off_graph": files[1:]}):
        report = fusion_diff(on, plain, **options)
        assert (first(report), fusion.switch(report)) == (("BORN", ADD), PASSES[ADD])
        assert [run.notes for run in (report.comparisons[0].target, report.comparisons[0].golden)] == [
            (f"graph {files[0]}",), (f"graph {files[1]}",)
        ]  # fmt: skip


def test_a_graph_of_something_else_is_refused(tmp_path, off):
    (tmp_path / "other.txt").write_text('graph { op { name: "x" type: "Data" output_desc { } } }')
    with pytest.raises(UsageError, match="no operator of this graph"):
        fusion_diff(write(tmp_path / "on", device()), off, on_graph=[tmp_path / "other.txt"])


@pytest.mark.parametrize("side", ["neither", "on", "off"])
@pytest.mark.parametrize("fault", ["", ADD])
def test_without_graphs(tmp_path, off, side, fault):
    """Names are taken apart; where a name tells nothing (conv and batch norm), what ran next in the other run does."""
    on, plain = write(tmp_path / "on", device(fault)), tmp_path / "off"
    shutil.copytree(off, plain)
    for name in {"on", "off"} - {side}:
        (tmp_path / name / GRAPH).unlink()
    report = fusion_diff(on, plain)
    assert first(report) == ("BORN", ADD) if fault else report.roots == (), screen(report)
    assert report.exit_status == (1 if fault else 0)
    assert set(rows(report)) == set(PASSES)
    guessed_words = "4 (net/conv1/Conv2Dnet/conv1/Relu, net/block_0/a/Conv2Dnet/block_0/a/Relu, "
    assert any(guessed_words in note and f"1 ({CONV_B}) by the" in note for note in report.notes) == (side != "on")
    assert fusion.switch(report) == (PASSES[ADD] if fault and side == "on" else {})
    if fault and side != "on":
        assert "next: the passes of these operators are not known" in screen(report)


def an_operator(name, shape=(2, 3), inserted=False) -> Operator:
    return Operator(name, "", name, "", 0, (TensorRef("output:0", "float32", shape),), inserted=inserted)


def a_run(*operators) -> Run:
    made = [one if isinstance(one, Operator) else an_operator(one) for one in operators]
    return Run("dump", "cann", tuple(one._replace(order=i) for i, one in enumerate(made)))


CHAINS = [  # (operators with fusion, without, guessed)
    ("concatenated", ["a/conva/bn"], ["a/conv", "a/bn"], {"a/conva/bn": ("a/conv", "a/bn")}),
    ("escaped", ["a_conva_bn"], ["a/conv", "a/bn"], {"a_conva_bn": ("a/conv", "a/bn")}),
    ("a name of its own", ["conv", "relu"], ["conv", "relu"], {}),
    ("in two ways", ["abc"], ["a", "bc", "ab", "c"], {}),
    ("of the first alone", ["conv", "pool"], ["conv", "bn", "relu", "pool"], {"conv": ("conv", "bn", "relu")}),
    ("the last alone", ["conv"], ["conv", "bn"], {"conv": ("conv", "bn")}),
    ("both", ["xy", "pool"], ["x", "y", "z", "pool"], {"xy": ("x", "y", "z")}),
    ("of another shape", ["conv"], ["conv", an_operator("bn"), an_operator("sum", ())], {"conv": ("conv", "bn")}),
    ("before an unknown one", ["MatMul-op0", "Fused_Add_Relu-op5"], ["MatMul-op0", "Add-op1", "Relu-op2"], {}),
    ("inserted ones do not count", ["conv", "pool"], ["conv", an_operator("trans", inserted=True), "bn", "pool"], {
        "conv": ("conv", "bn")}),
    ("nothing in common", ["x"], ["y", "z"], {}),
]  # fmt: skip


@pytest.mark.parametrize("fused, plain, chains", [row[1:] for row in CHAINS], ids=[row[0] for row in CHAINS])
def test_guessed_chains(fused, plain, chains):
    run, by_name, by_order = guess_fusion(a_run(*fused), a_run(*plain))
    assert {one.name: one.originals for one in run.operators if one.originals} == chains
    assert sorted(by_name + by_order) == sorted(chains)
    assert all(one.tensors[0].origin == f"{one.originals[-1]}:0" for one in run.operators if one.originals)


def test_guessing_takes_no_long():
    names = ["a" * length for length in range(1, 200)]
    run, _, _ = guess_fusion(a_run("a" * 3000), a_run(*names))
    assert run.operators[0].originals == ()


@pytest.mark.parametrize("sample", ["mindspore_layer_norm", "tfdbg_batch_norm", "msprobe_softmax"])
def test_dumps_of_other_formats(sample):
    report = fusion_diff(SAMPLES / sample / "target", SAMPLES / sample / "golden")
    assert (report.exit_status, fusion.switch(report), rows(report)) == (1, {}, {})
    assert "not the cause" not in screen(report)


# The files


def test_the_sample_on_the_screen_and_in_files(tmp_path):
    report = fusion_diff(SAMPLE / "target", SAMPLE / "golden")
    text = screen(report)
    for words in (
        "First diverging operator\n  1  BORN        net/block_0/addnet/block_0/Relu  output:0",
        "golden: net/block_0/Relu",
        "fused operators: 8 (1 BORN, 4 PROPAGATED, 3 not suspected)",
        "AddReluFusionPass: net/block_0/addnet/block_0/Relu, error in 6.3e-04, out 8.0e-03",
        "computes net/block_0/add, net/block_0/Relu",
        "only with fusion: AddReluFusionPass (2 operators), ConvBatchnormFusionPass (5 operators)",
        "next: disable AddReluFusionPass with fusion_switch.cfg",
        "100 % of elements compared",
    ):
        assert words in text
    write_reports(report, tmp_path)
    assert json.loads((tmp_path / "fusion_switch.cfg").read_text()) == {
        "Switch": {"UBFusion": {"AddReluFusionPass": "off"}}
    }
    with open(tmp_path / "fusion.csv", encoding="utf-8", newline="") as file:
        header, *found = list(csv.reader(file))
    contract = (
        "fused_op, op_type, pass_name, original_ops, compared_slot, golden_op, verdict, cosine, rel_l2, max_abs_err, "
        "cause, because"
    )
    assert header == [*contract.split(", "), "step", "rank", "order"]
    row = dict(zip(header, next(row for row in found if row[0] == ADD)))
    assert (row["pass_name"], row["golden_op"], row["verdict"], row["cause"], row["compared_slot"]) == (
        "AddReluFusionPass", "net/block_0/Relu", "diverged", "BORN", "output:0",
    )  # fmt: skip
    assert float(row["rel_l2"]) == pytest.approx(8e-3, rel=0.1) and row["original_ops"].count(",") == 1
    passes = {one["name"]: one for one in json.loads((tmp_path / "summary.json").read_text())["passes"]}
    assert passes["AddReluFusionPass"] == {"name": "AddReluFusionPass", "kind": "UBFusion", "on": 2, "off": 0}
    assert passes["ConstToAttrPass"] == {"name": "ConstToAttrPass", "kind": "GraphFusion", "on": 1, "off": 1}


def test_the_command(tmp_path, off):
    on = write(tmp_path / "on", device(ADD))
    graphs = ["--on-graph", str(on / GRAPH), "--off-graph", str(off / GRAPH)]
    done = CliRunner().invoke(npucmp, ["fusion-diff", str(on), str(off), "-o", str(tmp_path / "out"), *graphs])
    assert done.exit_code == 1
    assert f"disable AddReluFusionPass with {tmp_path / 'out'}/fusion_switch.cfg" in done.output
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {"fusion.csv", "fusion_switch.cfg", "summary.json"}
    clean = CliRunner().invoke(npucmp, ["fusion-diff", str(off), str(off), "-o", str(tmp_path / "same")])
    assert clean.exit_code == 0
    assert json.loads((tmp_path / "same" / "fusion_switch.cfg").read_text()) == {"Switch": {}}


@pytest.mark.parametrize("generation", ["object", "list", "concatenated", "keyed", "none", "broken"])
def test_fusion_result_of_every_generation(tmp_path, off, generation):
    on, plain = write(tmp_path / "on", device(ADD)), tmp_path / "off"
    shutil.copytree(off, plain)
    for folder in (on, plain):
        (keyed,) = json.loads((folder / "fusion_result.json").read_text()).values()
        one = {**keyed, "session_and_graph_id": "0_0"}
        texts = {
            "object": json.dumps(one), "list": json.dumps([one, one]), "concatenated": json.dumps(one) * 3,
            "keyed": json.dumps({"session_and_graph_id_0_0": keyed}), "broken": json.dumps(one)[:-5],
        }  # fmt: skip
        (folder / "fusion_result.json").unlink()
        if generation in texts:
            (folder / "fusion_result.json").write_text(texts[generation])
    report = fusion_diff(on, plain)
    effects = {one.name: (one.kind, one.on, one.off) for one in report.passes}
    times = {"list": 2, "concatenated": 3}.get(generation, 1)
    if generation in ("none", "broken"):
        assert effects == {}
        assert fusion.switch(report) == {"GraphFusion": {"AddReluFusionPass": "off"}}  # the name tells no more
        assert any("ignored, not JSON" in note for note in report.notes) == (generation == "broken")
    else:
        assert effects["AddReluFusionPass"] == ("UBFusion", times, 0)
        assert fusion.switch(report) == PASSES[ADD]


def test_one_fusion_result_for_both_runs_tells_kinds_only(tmp_path):
    on = write(tmp_path / "on", device(ADD), counts=False)
    plain = write(tmp_path / "off", device(fused=False), make_cann.UNFUSED, counts=False)
    (tmp_path / "fusion_result.json").write_text(json.dumps(make_cann.fusion_result(device())))
    report = fusion_diff(on, plain)
    assert {(one.on, one.off) for one in report.passes} == {(None, None)}
    assert fusion.switch(report) == PASSES[ADD]
    assert any("but not their run" in note for note in report.notes)
    assert summary(answer_of(report))["passes"][0]["on"] is None


KINDS = {
    "TbeConvReluFusionPass": "UBFusion", "ATbeMatMulElemwiseFusionPass": "UBFusion", "AutomaticUbFusion": "UBFusion",
    "MatmulReduceSumUbFusion": "UBFusion", "TBEConvAddFusion": "GraphFusion", "ConvBatchnormFusionPass": "GraphFusion",
    "BatchMatmulFusionPass": "GraphFusion", "MulSubFusionPass": "GraphFusion",
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_kinds_by_name(name):
    assert fusion.kind_of(name) == KINDS[name]


@shared
def test_kinds_of_a_real_file():
    text = (DATA / "fusion_result.single_object.json").read_text()
    for section, kind in (("graph_fusion", "GraphFusion"), ("ub_fusion", "UBFusion")):
        assert {fusion.kind_of(name) for name in json.loads(text)[section]} == {kind}


# Fusion groups of real graphs, counted by plain reading of their lines


def operators_of(path: Path) -> list[str]:
    """The text of each operator; blocks are told by their indentation."""
    return re.findall(r"^  op \{\n(.*?)^  \}\n", path.read_text(), re.MULTILINE | re.DOTALL)


def attribute(text: str, key: str) -> list[str] | None:
    """The values of an attribute of the operator itself, as the file spells them; None without it."""
    found = re.search(rf'^    attr \{{\n      key: "{key}"\n(.*?)^    \}}\n', text, re.MULTILINE | re.DOTALL)
    return None if found is None else re.findall(r"^ +(?:s|i|b): (.*)$", found[1], re.MULTILINE)


def name_of(text: str) -> str:
    return re.search(r'^    name: "(.*)"$', text, re.MULTILINE)[1]


@shared
@pytest.mark.parametrize(
    "file, operators, several, shared_by_two",
    [
        ("ge_proto_00015_OptimizeQuantGraph_FeGraphFusionAfter.txt", 465, 1, 21),
        ("ge_proto_00046_afterUBMatch.txt", 234, 53, 0),
    ],
)
def test_groups_of_real_graphs(file, operators, several, shared_by_two):
    (graph,) = load_graphs(DATA / file)
    texts = operators_of(DATA / file)
    assert len(texts) == len(graph.nodes) == operators
    originals = [attribute(text, "_datadump_original_op_names") for text in texts]
    assert sum(len(set(names or ())) > 1 for names in originals) == several
    assert sum(count > 1 for count in Counter(map(str, filter(None, originals))).values()) == shared_by_two
    expected: dict[object, set[str]] = {}
    for text, names in zip(texts, originals):
        scope = attribute(text, "fusion_scope")
        key = f"scope {scope[0]}" if scope else tuple(names) if names is not None else (f'"{name_of(text)}"',)
        if key:
            expected.setdefault(key, set()).add(name_of(text))
    found = [{node.name for node in nodes} for nodes in groups(graph).values()]
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected.values()))
    assert sum(len(nodes) > 1 for nodes in found) == (21 if "00015" in file else 49)


@shared
def test_fusions_in_the_unified_buffer_that_a_real_graph_is_about_to_make():
    (graph,) = load_graphs(DATA / "ge_proto_00046_afterUBMatch.txt")
    made = {node.name: node for node in fused_operators(graph)}
    scopes = Counter(scope[0] for text in operators_of(Path(graph.path)) if (scope := attribute(text, "fusion_scope")))
    assert len(made) == len(scopes) == 49 and sum(scopes.values()) == 115
    node = made["conv1conv1_relupool1"]
    assert node.originals == ("scale_conv1", "conv1", "bn_conv1", "conv1_relu", "pool1")
    assert {port.origin_name for port in node.ports_out} == {"pool1"}


def test_a_graph_that_was_written_before_its_fusions_serves_too(tmp_path, off):
    """The dump holds "a/Conv2Da/Relu"; the graph still has both, in one scope."""
    on = write(tmp_path / "on", device(CONV_A))
    text = (on / GRAPH).read_text()
    start = text.index(f'op {{ name: "{CONV_A}"')
    whole = text[start : text.index("\n}\n", start) + 3]
    scope = '  attr { key: "fusion_scope" value { i: 4 } }\n'
    conv, relu = "net/block_0/a/Conv2D", "net/block_0/a/Relu"
    head, inputs, described, written = (
        re.search(r".*\n", whole)[0], "".join(re.findall(r"  input: .*\n", whole)),
        "".join(re.findall(r"  input_desc.*\n", whole)), re.search(r"  output_desc.*\n", whole)[0],
    )  # fmt: skip
    passes = "".join(re.findall(r'  attr \{ key: "pass_name".*\n', whole))
    names = f'list {{ s: "{conv}" s: "net/block_0/a/bn/FusedBatchNormV3" val_type: VT_LIST_STRING }}'
    parts = (
        head.replace(CONV_A, conv) + inputs + scope + passes
        + f'  attr {{ key: "_datadump_original_op_names" value {{ {names} }} }}\n'
        + described + re.sub(r' attr \{ key: "_datadump.*?\} \}', "", written) + "}\n"
        + f'op {{ name: "{relu}" type: "Relu" id: {re.search("id: ([0-9]+)", head)[1]}\n  input: "{conv}:0"\n{scope}'
        + written.replace("output_desc", "input_desc", 1) + written + "}\n"
    )  # fmt: skip
    (on / GRAPH).write_text(text.replace(whole, parts).replace(f'input: "{CONV_A}:0"', f'input: "{relu}:0"'))
    report = fusion_diff(on, off)
    assert (first(report), fusion.switch(report)) == (("BORN", CONV_A), PASSES[CONV_A])
