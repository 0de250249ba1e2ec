"""npucmp fusion-diff: a small residual network, computed in numpy as a device runs it with and without fusion.

sample_dumps/make_cann.py computes both runs in float16 and writes them as raw dumps with graph and fusion_result.json;
here one operator at a time goes wrong, graphs are taken away, and operators are split as a compiler would.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp import fusion_diff
from npucmp.cli import npucmp
from npucmp.dump.graphs import load_graphs
from npucmp.dump.graphs.graph import fused_operators, groups
from npucmp.errors import UsageError
from npucmp.fusion import report as fusion
from tests.reports import screen, table

HERE = Path(__file__).parent
SAMPLES = HERE.parent.parent / "sample_dumps"
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


def test_dumps_in_the_wrong_order_are_noticed(tmp_path, off):
    report = fusion_diff(off, write(tmp_path / "on", device()))
    assert any("were the two given in the wrong order?" in note for note in report.notes)
    assert not any("wrong order" in note for note in fusion_diff(tmp_path / "on", off).notes)


def test_a_single_operator_that_a_pass_made(tmp_path, off):
    ops = [
        op._replace(passes=("AReduceMeanFusionPass",)) if "Mean" in op.name else op for op in device("net/pool/Mean")
    ]
    report = compared(tmp_path, off, ops)
    assert first(report) == ("BORN", "net/pool/Mean")
    assert fusion.switch(report) == {"GraphFusion": {"AReduceMeanFusionPass": "off"}}


# Groups


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


# Graphs


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


# The files


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
