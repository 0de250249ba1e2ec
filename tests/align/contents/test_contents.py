"""Runs of two frameworks without common names are aligned by the values that they compute."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import numpy as np
import pytest

import npucmp
from npucmp.align.content_hash import hash_values
from npucmp.align.contents import similarity
from npucmp.align.contents.content import ContentReader
from npucmp.align.contents.content_graph import ContentGraph
from npucmp.align.contents.content_pairs import ContentPair, ContentPairs
from npucmp.align.contents.layer_patterns import LayerPatterns
from npucmp.align.contents.learned_types import LearnedTypes
from npucmp.align.contents.weight_anchors import match_weights
from npucmp.align.rank_run import Values
from npucmp.dump.limits import ANYWHERE
from npucmp.errors import UsageError
from npucmp.model import Cause
from tests.align.contents import networks
from tests.align.craft import run_with_values
from tests.synthetic import write_run

PAIRS = {
    "transformer": (networks.tf_transformer, networks.torch_transformer),
    "cnn": (networks.tf_cnn, networks.torch_cnn),
}


def changed(name, function):
    """A fault: the output of one operator is another one."""
    return lambda operator, out: function(out) if operator == name else out


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """The clean dumps of both spellings of each network."""
    folder = tmp_path_factory.mktemp("contents")
    for name, both in PAIRS.items():
        for side, function in zip(("tf", "torch"), both):
            function(folder / name / side)
    return folder


def compared(target, golden, **options):
    return npucmp.compare(target, golden, precheck=False, jobs=1, **options)


def partners(report):
    """The golden operator of each output of the target that has one."""
    return {
        finding.pair.target_op.name: finding.pair.golden_op.name
        for finding in report.findings
        if finding.pair.target is not None and finding.pair.golden is not None and finding.pair.slot == "output:0"
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("network", PAIRS)
@pytest.mark.parametrize("sides", [("tf", "torch"), ("torch", "tf")])
def test_clean_runs_agree_in_both_directions(dumps, network, sides):
    report = compared(*(dumps / network / side for side in sides))
    assert not report.roots and report.exit_status == 0
    assert "by value" in report.comparisons[0].aligned_by_content


def test_the_partners_are_those_that_compute_the_same(dumps):
    found = partners(compared(dumps / "cnn" / "tf", dumps / "cnn" / "torch"))
    for layer in range(4):
        assert found[f"m__b{layer}__BiasAdd"] == f"features_{layer}_BatchNorm2d"  # the batch norm was folded
        assert found[f"m__b{layer}__Relu"] == f"features_{layer}_ReLU"
    found = partners(compared(dumps / "transformer" / "tf", dumps / "transformer" / "torch"))
    for layer in range(networks.LAYERS):
        assert found[f"block{layer}__ln_a__Add"] == f"layers_{layer}_a_LayerNorm"
        assert found[f"block{layer}__gelu__Mul_2"] == f"layers_{layer}_up_Gelu"
        assert found[f"block{layer}__scores__BatchMatMulV2"] == f"layers_{layer}_qk_Div"


FAULTS = [
    ("transformer", "block1__probs__Softmax", lambda out: out * 1.1, {"block1__probs__Softmax"}),
    ("transformer", "block0__proj_k__BiasAdd", lambda out: out[..., ::-1], {"block0__proj_k__BiasAdd"}),
    ("transformer", "block1__ln_b__Mul", lambda out: out + 0.3, {"block1__ln_b__Add"}),
    ("transformer", "block1__gelu__Erf", lambda out: out + 0.4, {"block1__gelu__Mul_2"}),
    ("transformer", "block2__ctx__Transpose", lambda out: out[::-1], {"block2__ctx__Transpose"}),
    ("cnn", "m__b1__BiasAdd", lambda out: out * 0.7, {"m__b1__BiasAdd"}),
    ("cnn", "m__b2__Relu", lambda out: out + 0.1, {"m__b2__Relu"}),
    ("cnn", "m__b1__Relu", lambda out: out[:, ::-1], {"m__b1__Relu"}),  # the rows of each picture in another order
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("network", "operator", "function", "right"), FAULTS, ids=[one[1] for one in FAULTS])
def test_the_operator_with_the_fault_is_the_first(dumps, tmp_path, network, operator, function, right):
    PAIRS[network][0](tmp_path / "run", changed(operator, function))
    report = compared(tmp_path / "run", dumps / network / "torch")
    assert report.exit_status == 1
    assert report.roots[0].pair.operator.name in right
    born = [root for root in report.roots if root.cause in (Cause.BORN, Cause.GAP)]
    assert {root.pair.operator.name for root in born} <= right


def test_no_pair_behind_a_fault_is_wrong(dumps, tmp_path):
    """Noise replaces one output of the first layer, so that nothing behind it is near its partner."""
    clean = partners(compared(dumps / "transformer" / "tf", dumps / "transformer" / "torch"))
    rng = np.random.default_rng(5)
    fault = changed("block0__res__AddV2", lambda out: rng.standard_normal(out.shape))
    networks.tf_transformer(tmp_path / "run", fault)
    found = partners(compared(tmp_path / "run", dumps / "transformer" / "torch"))
    wrong = {one: other for one, other in found.items() if one in clean and clean[one] != other}
    assert not wrong
    assert len(found.keys() & clean.keys()) >= 0.75 * len(clean)


def test_a_lost_bias_is_no_copy(dumps, tmp_path):
    bias = networks.transformer_weights()[1]["bo"]
    networks.tf_transformer(tmp_path / "run", changed("block1__proj_o__BiasAdd", lambda out: out - bias))
    report = compared(tmp_path / "run", dumps / "transformer" / "torch")
    assert report.roots[0].pair.operator.name == "block1__proj_o__BiasAdd"


def test_names_alone_refuse_the_runs_and_content_is_forced(dumps):
    with pytest.raises(UsageError, match="look like different networks"):
        compared(dumps / "cnn" / "tf", dumps / "cnn" / "torch", align="names")
    same = dumps / "cnn" / "torch"
    assert not compared(same, same).comparisons[0].aligned_by_content
    forced = compared(same, same, align="content")
    assert forced.exit_status == 0 and forced.comparisons[0].aligned_by_content


def test_different_networks_are_refused(dumps, tmp_path):
    networks.tf_cnn(tmp_path / "run")
    for align in ("auto", "content"):
        with pytest.raises(UsageError, match="look like different networks"):
            compared(tmp_path / "run", dumps / "transformer" / "torch", align=align)


def test_constants_and_ids_pair_nothing(tmp_path):
    """Two networks that share ids, a mask and zeros, and compute other values from them."""
    rng = np.random.default_rng(7)
    for side in ("a", "b"):
        run = networks.Recorder(tmp_path / side)
        ids = np.arange(12, dtype=np.int64)
        zeros, mask = np.zeros(64, np.float32), np.where(np.arange(64) % 3, 0, -1e9).astype(np.float32)
        x = rng.standard_normal(64).astype(np.float32)
        for number in range(6):
            x = run(f"{side}{number}_Op{side}", lambda x, *_: np.tanh(x) + rng.standard_normal(64), x, ids, zeros, mask)
    with pytest.raises(UsageError):
        compared(tmp_path / "a", tmp_path / "b")


def test_the_report_shows_how_tensors_were_paired(dumps, tmp_path):
    networks.tf_cnn(tmp_path / "run", changed("m__b1__Relu", lambda out: out + 0.2))
    report = compared(tmp_path / "run", dumps / "cnn" / "torch", explain=("m__b2__Relu",))
    text = str(report)
    assert "distinct tensors:" in text and "axes NHWC → NCHW" in text
    assert "explain: target m__b2__Relu: partner features_2_ReLU" in text
    npucmp.write_reports(report, tmp_path / "out")
    with open(tmp_path / "out" / "tensors.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["matched_by"]]
    assert {"content"} < {row["matched_by"] for row in rows} <= {
        "content", "structure", "weights", "pattern", "similar", "copy", "parts"
    }  # fmt: skip
    assert all(row["match_reason"] for row in rows)
    assert any(row["relation"] == "permute(0,3,1,2)" for row in rows)
    folded = next(row for row in rows if row["op"] == "m__b0__BiasAdd" and row["slot"] == "input:1")
    assert folded["golden_op"] == "features_0_BatchNorm2d" and folded["golden_slot"] == "input:2"


def test_a_corrected_mapping_is_read_back(dumps, tmp_path):
    networks.tf_transformer(tmp_path / "run", changed("block0__proj_k__BiasAdd", lambda out: out[..., ::-1]))
    golden = dumps / "transformer" / "torch"
    npucmp.write_reports(compared(tmp_path / "run", golden), tmp_path / "out")
    mapping = tmp_path / "out" / "mapping.yaml"
    line = '"block0__proj_k__BiasAdd": "layers_0_k_Linear"'
    assert line in mapping.read_text(encoding="utf-8")
    again = compared(tmp_path / "run", golden, mapping=mapping)
    assert again.roots[0].cause is Cause.BORN
    assert {one.pair.via for one in again.findings if one.pair.operator == again.roots[0].pair.operator} >= {"mapping"}
    wrong = mapping.read_text(encoding="utf-8").replace(line, '"block0__proj_k__BiasAdd": "layers_0_v_Linear"')
    mapping.write_text(wrong, encoding="utf-8")
    found = partners(compared(tmp_path / "run", golden, mapping=mapping))
    assert found["block0__proj_v__BiasAdd"] == "layers_0_v_Linear"  # values contradict the line


def test_the_hash_knows_signs_and_no_order():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(384)
    assert hash_values(values) == hash_values(rng.permutation(values))
    assert hash_values(np.array([0.0, 1.0])) == hash_values(np.array([1.0, -0.0]))
    for seed in range(200):
        signs = np.random.default_rng(seed).permutation(np.repeat((1.0, -1.0), 192))
        assert hash_values(values) != hash_values(values * signs)


def test_a_slice_of_a_fused_projection_is_compared(tmp_path):
    rng = np.random.default_rng(2)
    weights = [rng.standard_normal((8, 8)).astype(np.float32) for _ in range(3)]
    first = rng.standard_normal((8, 8)).astype(np.float32)
    x = rng.standard_normal((5, 8)).astype(np.float32)
    fused, apart = networks.Recorder(tmp_path / "fused"), networks.Recorder(tmp_path / "apart")
    h = fused("a__Relu", lambda x, w: np.maximum(x @ w, 0), x, first)
    fused("a__MatMul", lambda h, w: h @ w, h, np.concatenate(weights, 1))
    h = apart("in_ReLU", lambda x, w: np.maximum(x @ w, 0), x, first)
    for name, weight in zip("qkv", weights):
        apart(f"{name}_Linear", lambda h, w: h @ w, h, weight)
    report = compared(tmp_path / "fused", tmp_path / "apart", align="content")
    rows = {finding.pair.slot: finding for finding in report.findings if finding.pair.via == "parts"}
    assert {"output:0.0", "output:0.8", "output:0.16"} <= rows.keys()
    assert all(finding.verdict.value == "match" for finding in rows.values())


@pytest.mark.parametrize("nhwc", [True, False])
def test_groups_of_channels_in_another_arrangement_are_no_difference(tmp_path, nhwc):
    networks.grouped_cnn(tmp_path / "target", nhwc)
    networks.grouped_cnn(tmp_path / "golden", not nhwc)
    report = compared(tmp_path / "target", tmp_path / "golden")
    assert not report.roots and report.exit_status in (0, 2)
    assert "by value" in report.comparisons[0].aligned_by_content


@pytest.mark.parametrize("golden_first", ["encoder", "decoder"])
def test_two_branches_that_hold_equal_values_in_another_order_stay_apart(tmp_path, golden_first):
    """An encoder and a decoder read the same words in another order, so that their norms hold the same numbers."""
    rng = np.random.default_rng(3)
    words = rng.standard_normal((2, 6, 16)).astype(np.float32)
    inputs = {"encoder": words, "decoder": words[::-1]}
    weights = {name: rng.standard_normal((16, 16)).astype(np.float32) for name in inputs}
    target, golden = networks.Recorder(tmp_path / "target"), networks.Recorder(tmp_path / "golden")
    for name in ("encoder", "decoder"):
        squares = target(f"{name}__Mean", lambda x: (x * x).mean(-1, keepdims=True), inputs[name])
        squares = target(f"{name}__AddV2", lambda x: x + 1e-5, squares)
        root = target(f"{name}__Sqrt", np.sqrt, squares)
        h = target(f"{name}__RealDiv", lambda x, y: x / y, inputs[name], root)
        target(f"{name}__MatMul", lambda x, w: x @ w, h, weights[name])
    for name in (golden_first, ({*inputs} - {golden_first}).pop()):
        squares = golden(f"layer_{name}_pow_Mean", lambda x: (x * x).mean(-1, keepdims=True), inputs[name])
        squares = golden(f"layer_{name}_eps_Add", lambda x: x + 1e-5, squares)
        root = golden(f"layer_{name}_Rsqrt", lambda x: 1 / np.sqrt(x), squares)
        h = golden(f"layer_{name}_Mul", lambda x, y: x * y, inputs[name], root)
        golden(f"layer_{name}_out_Linear", lambda x, w: x @ w, h, weights[name])
    report = compared(tmp_path / "target", tmp_path / "golden", align="content")
    assert not report.roots
    found = partners(report)
    assert found["encoder__AddV2"] == "layer_encoder_eps_Add" and found["decoder__AddV2"] == "layer_decoder_eps_Add"


@pytest.mark.parametrize("is_named", [False, True])
def test_numbered_names_that_the_values_contradict_are_not_trusted(tmp_path, is_named):
    """Both sides number the calls of each function, and compute two branches of each layer in another order. Where the
    user names partners, names count."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((4, 12)).astype(np.float32)
    weights = [rng.standard_normal((12, 12)).astype(np.float32) for _ in range(12)]
    for side, order in {"target": range(12), "golden": [at ^ 1 for at in range(12)]}.items():
        tanh, calls = {"target": "Torch", "golden": "Functional"}[side], {}
        for number, at in enumerate(order):
            z = x @ weights[at]
            calls[f"Torch.matmul.{number}.forward"] = {"in": [x, weights[at]], "out": [z]}
            calls[f"{tanh}.tanh.{number}.forward"] = {"in": [z], "out": [np.tanh(z)]}
        calls[f"{tanh}.relu.0.forward"] = {"in": [x], "out": [np.maximum(x, 0)]}
        write_run(tmp_path / side, calls)
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text('"Torch.tanh.0.forward": "Functional.tanh.0.forward"')
    more = {"mapping": mapping} if is_named else {}
    report = compared(tmp_path / "target", tmp_path / "golden", **more)
    assert bool(report.roots) is is_named
    assert ("by value" in report.comparisons[0].aligned_by_content) is not is_named
    if is_named:
        assert partners(report)["Torch.matmul.0.forward"] == "Torch.matmul.0.forward"


@pytest.mark.parametrize("twins, found", [(1, 1), (2, 0), (0, 0)])
def test_a_content_made_as_in_another_layer_is_a_partner_if_it_is_the_only_one(tmp_path, twins, found):
    """Layer 0 shows that tanh of a sine is the partner of its like; the values of layer 1 are wrong."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((2, 5, 4)).astype(np.float32)
    graphs = []
    for side in ("target", "golden"):
        calls = []
        for layer in range(2):
            first, second = (f"Torch.{kind}.{layer}.forward" for kind in ("sin", "tanh"))
            sine = np.sin(x[layer])
            calls += [(first, [x[layer]], [sine])]
            calls += [(second, [sine], [np.tanh(sine)])] if not layer else []
        calls += [
            (f"Torch.tanh.{1 + at}.forward", [sine], [rng.standard_normal((5, 4)).astype(np.float32)])
            for at in range(twins)
        ]
        graphs.append(ContentGraph(run_with_values(tmp_path / side, calls), ContentReader(Values(ANYWHERE))))
    pairs = ContentPairs(*graphs, ContentReader(Values(ANYWHERE)), 1e-3)
    for golden in graphs[1].contents[:5]:
        pairs.add(ContentPair(golden.number, golden.number, "content", 1.0, "", error=0.0))
    assert LayerPatterns(pairs).match() == found
    assert [(one.target, one.golden) for one in pairs if one.via == "pattern"] == [(5, 5)][:found]


@pytest.mark.parametrize(
    "kinds, alone, is_pair",
    [
        (("linear", "conv2d"), (0, 0), True),
        (("linear", "conv2d"), (1, 0), True),  # one type has no partner elsewhere
        (("linear", "conv2d"), (0, 1), True),
        (("linear", "conv2d"), (1, 1), False),  # each has none
        (("linear", "linear"), (1, 0), True),
        (("linear", "linear"), (1, 1), False),
    ],
)
def test_types_that_have_no_partners_where_the_runs_agree_have_none(tmp_path, kinds, alone, is_pair):
    """Both read the same weight and the same activation, and write other values."""
    rng = np.random.default_rng(6)
    x, weight = rng.standard_normal((2, 4, 4)).astype(np.float32)
    graphs, h = [], np.tanh(x)
    for side, kind in zip(("target", "golden"), kinds):
        out = rng.standard_normal((4, 4)).astype(np.float32)
        calls = [("Torch.tanh.0.forward", [x], [h]), (f"Torch.{kind}.0.forward", [h, weight], [out])]
        graphs.append(ContentGraph(run_with_values(tmp_path / side, calls), ContentReader(Values(ANYWHERE))))
    pairs = ContentPairs(*graphs, ContentReader(Values(ANYWHERE)), 1e-3)
    for number in range(3):
        pairs.add(ContentPair(number, number, "content", 1.0, "", error=0.0))
    types = LearnedTypes(pairs)
    for side, (graph, count) in enumerate(zip(graphs, alone)):
        types.alone[side][graph.type_of(3)] += count
    assert match_weights(pairs, types) == is_pair
    assert pairs.to_golden.get(3) == (3 if is_pair else None)


BEST = {"score": 1.5, "distance": 0.5, "kin": 0.5}
SECOND = {"score": 1.0, "distance": 0.6, "kin": 0.5}


@pytest.mark.parametrize(
    "first, second, confidence",
    [
        ({}, {}, 0.85),  # as sure as nearness can be
        ({}, None, 0.85),
        ({}, {"score": 1.5}, None),  # as good as the other one
        ({}, {"score": 1.4}, None),
        ({}, {"score": 1.3}, 0.7),
        ({"score": 1.109375}, {"score": 1.109375 - similarity.MARGIN}, 0.62),  # a difference of exactly the margin
        ({"score": 1.109375}, {"score": 1.109375 - similarity.MARGIN + 1e-9}, None),
        ({"score": similarity.LEAST}, {"score": 0.5}, None),
        ({"score": similarity.LEAST + 1e-9}, {"score": 0.5}, 0.85),
        ({"distance": similarity.FARTHEST}, {}, None),
        ({"distance": similarity.FARTHEST - 1e-9}, {}, 0.85),
        ({"kin": 0.3}, {}, None),  # too few common relatives
        ({"kin": 0.3 + 1e-9}, {}, 0.85),
        ({"kin": 0.0, "distance": similarity.CLOSE}, {}, None),
        ({"kin": 0.0, "distance": similarity.CLOSE - 1e-9}, {}, 0.85),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_the_nearest_of_all_is_a_partner_if_it_leaves_no_choice(monkeypatch, first, second, confidence, side):
    """The second candidate is another golden content of the target's, or another target content of the golden's."""
    likenesses = [similarity.Likeness(target=0, golden=0, **{**BEST, **first})]
    if second is not None:
        likenesses.append(similarity.Likeness(target=side, golden=1 - side, **{**SECOND, **second}))
    monkeypatch.setattr(similarity, "_likenesses", lambda pairs, types: iter(likenesses))
    added = []
    pairs = SimpleNamespace(add=lambda one: added.append(one) or True)
    count, found = similarity.match_similar(pairs, None)
    assert (count, found) == (len(added), likenesses)
    assert [one.confidence for one in added if (one.target, one.golden) == (0, 0)] == (
        [confidence] if confidence else []
    )
    assert len(added) <= 1
