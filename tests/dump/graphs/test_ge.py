"""GE graphs as text and JSON: real files, what attributes mean, and files that lie about their types."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump import graphs
from npucmp.dump.graphs import ge
from npucmp.dump.graphs.graph import Port, merge_graphs
from npucmp.dump.readers.text import read_text
from npucmp.dump.readers.textproto import parse
from npucmp.errors import DumpError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "cann"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared files are not beside this checkout")
FUSION = "ge_proto_00015_OptimizeQuantGraph_FeGraphFusionAfter.txt"
MATCHED = "ge_proto_00046_afterUBMatch.txt"
OFFLINE = "atc_mode1_om_model.json"


def ge_graph(text, path="p"):
    """The first graph of a text."""
    return ge.ge_graphs(parse(text, path, ge.is_relevant), path)[0]


def ge_node(fields):
    return ge_graph(f'graph {{ op {{ name: "n" {fields} }} }}').nodes[0]


def words(key, *values):
    return f'attr {{ key: "{key}" value {{ list {{ {" ".join(f"s: {json.dumps(one)}" for one in values)} }} }} }}'


@shared
@pytest.mark.parametrize(
    "file, name, ops, told, fused, multi",
    [
        (FUSION, "ResNet-50", 465, 207, 43, 42),
        (MATCHED, "partition0_rank3_new_sub_graph57", 234, 55, 53, 0),
        (OFFLINE, "sub_model_NPU_0", 19, 9, 4, 0),
    ],
)
def test_real_file(file, name, ops, told, fused, multi):
    (graph,) = graphs.load_graphs(SHARED / file)
    assert (graph.name, graph.path) == (name, str(SHARED / file))
    assert len(graph.nodes) == len({node.name for node in graph.nodes}) == ops
    assert sum(node.originals is not None for node in graph.nodes) == told
    assert sum(bool(node.originals) for node in graph.nodes) == fused
    assert sum(node.is_multiop for node in graph.nodes) == multi
    assert [node.order for node in graph.nodes] == list(range(ops))


@pytest.mark.few(1)
@shared
@pytest.mark.parametrize("file", [FUSION, MATCHED, OFFLINE])
def test_real_inputs_are_described_and_come_from_nodes(file):
    (graph,) = graphs.load_graphs(SHARED / file)
    for node in graph.nodes:
        assert len(node.ports_in) == len(node.inputs)
        assert all(port.dtype and port.layout != "FORMAT_RESERVED" for port in node.ports_in)
        for producer, index in node.inputs:
            before = merge_graphs([graph]).by_name.get(producer)
            assert index < len(before.ports_out)
            assert before.order < node.order or before.op_type == "PlaceHolder"  # which is not executed


@shared
def test_real_device_layouts():
    (graph,) = graphs.load_graphs(SHARED / MATCHED)
    conv = merge_graphs([graph]).by_name.get("conv1")
    assert conv.originals == ("scale_conv1", "conv1", "bn_conv1")
    assert conv.inputs == (("PlaceHolder2", 0), ("PlaceHolder3", 0), ("PlaceHolder4", 0))
    assert conv.ports_in[1] == Port("DT_FLOAT16", "FRACTAL_Z_C04", (13, 4, 16, 16), "NCHW", (64, 3, 7, 7), "", 1)
    assert conv.ports_out == (
        Port("DT_FLOAT16", "NC1HWC0", (1, 4, 112, 112, 16), "NCHW", (1, 64, 112, 112), "scale_conv1", 0),
    )


@shared
def test_real_json():
    (graph,) = graphs.load_graphs(SHARED / OFFLINE)
    assert graph.nodes[0].op_type == "Data" and graph.nodes[0].inputs == ()
    suppression = merge_graphs([graph]).by_name.get("BatchMultiClassNMS_1203")
    assert [name for name, _ in suppression.inputs] == [
        f"BatchMultiClassNMS_1203_Input{i}_TransposeBefore" for i in (0, 1)
    ]
    assert [port.shape for port in suppression.ports_in] == [(1, 80, 4, 1000), (1, 80, 1000)]
    assert merge_graphs([graph]).by_name.get("Slice_1218").passes == ("ConstToAttrStridedSliceV2Fusion",)
    (scalar,) = merge_graphs([graph]).by_name.get("PartitionedCall_Gather_1221_const_data_2").ports_out
    assert (scalar.shape, scalar.origin_shape) == ((), ())


@shared
@pytest.mark.parametrize("file", [FUSION, MATCHED])
def test_text_and_json_of_a_model_are_the_same(file):
    path = str(SHARED / file)
    tree = parse(read_text(path, 1 << 30), path)
    assert ge.ge_graphs(ge.from_json(json.dumps(tree), path), path) == graphs.load_graphs(path)


@pytest.mark.parametrize(
    "fields, originals",
    [
        ("", None),
        (words("pass_name", "a"), None),
        (words("_datadump_original_op_names"), ()),
        (words("_datadump_original_op_names", ""), ()),
        ('attr { key: "_datadump_original_op_names" value { } }', ()),
        ('attr { key: "_datadump_original_op_names" }', None),
        (words("_datadump_original_op_names", "b", "a", "b"), ("b", "a")),
    ],
)
def test_originals(fields, originals):
    assert ge_node(fields).originals == originals


def test_attributes_of_an_op():
    node = ge_node(
        'type: "Conv2D" id: 7 attr { key: "_datadump_is_multiop" value { b: true } } '
        'attr { key: "_L1_fusion_sub_graph_no" value { s: "3" } }' + words("pass_name", "A", "B")
    )
    assert node[:3] == ("n", "Conv2D", 7)
    assert (node.is_multiop, node.group, node.passes) == (True, "3", ("A", "B"))


def test_edges():
    node = ge_node('input: "a:0" input: "" input: "b:c:12" input: "d:-1" input: "a:1"')
    assert node.inputs == (("a", 0), ("b:c", 12), ("a", 1))
    assert node.controls == ("d",)
    assert node.ports_in == ()


@pytest.mark.parametrize(
    "inputs, descriptions, layouts",
    [
        ("a:0  b:0", "X  Y", ["X", "Y"]),
        ("a:0  b:0", "X Y FORMAT_RESERVED", ["X", "Y"]),  # absent at the end, no entry
        ("a:0 - b:0", "X FORMAT_RESERVED Y", ["X", "Y"]),  # absent in the middle, an entry
        ("- a:0", "X Y", ["Y"]),  # the input of Data: described, but nothing writes it
        ("- a:0", "Y", ["Y"]),  # only valid inputs are described
        ("a:0 c:-1 b:0", "X Y", ["X", "Y"]),  # control edges have no description
        ("a:0 b:0", "X", []),
        ("a:0", "X Y", []),
    ],
)
def test_descriptions_belong_to_inputs_that_are_there(inputs, descriptions, layouts):
    fields = [f'input: "{one.strip("-") if one == "-" else one}"' for one in inputs.split()]
    fields += [f'input_desc {{ layout: "{one}" }}' for one in descriptions.split()]
    assert [port.layout for port in ge_node(" ".join(fields)).ports_in] == layouts


def test_a_description():
    attributes = [
        'key: "origin_format" value { s: "ND" }',
        'key: "_datadump_origin_format" value { s: "NHWC" }',
        'key: "origin_shape" value { list { i: 2 i: -1 } }',
        'key: "_datadump_origin_name" value { s: "net/relu" }',
        'key: "_datadump_origin_output_index" value { i: 3 }',
    ]
    described = " ".join(f"attr {{ {one} }}" for one in attributes)
    node = ge_node(
        f'output_desc {{ }} output_desc {{ dtype: DT_INT8 shape {{ dim: 2 dim: -1 }} layout: "L" {described} }}'
    )
    assert node.ports_out == (Port(), Port("DT_INT8", "L", (2, -1), "NHWC", (2, -1), "net/relu", 3))


@pytest.mark.parametrize("dims, origin", [("", ()), ("dim: 1", ()), ("dim: 4", None), ("dim: 1 dim: -1", None)])
def test_an_empty_origin_shape_is_a_scalar_only_where_one_element_is_stored(dims, origin):
    shape = 'attr { key: "origin_shape" value { list { } } }'
    assert ge_node(f"output_desc {{ shape {{ {dims} }} {shape} }}").ports_out[0].origin_shape == origin


def test_order_is_that_of_ids_then_of_the_file():
    graph = ge_graph('graph { op { name: "c" id: 2 } op { name: "a" } op { name: "b" id: 0 } op { name: "d" id: 2 } }')
    assert [(node.name, node.order) for node in graph.nodes] == [("a", 0), ("b", 0), ("c", 2), ("d", 2)]


def test_subgraphs_follow_the_root():
    tree = parse('name: "m" graph { name: "root" } graph { name: "sub" } graph { }', "p")
    assert [graph.name for graph in ge.ge_graphs(tree, "p")] == ["root", "sub", ""]


def test_attributes_that_nobody_reads_are_not_held():
    text = (
        'graph { op { name: "n" attr { key: "weight" value { t { data: "\\001" } } } '
        + words("pass_name", "A")
        + " } }"
    )
    attributes = parse(text, "p", ge.is_relevant)["graph"][0]["op"][0]["attr"]
    assert [one["key"] for one in attributes] == [["pass_name"]]
    listed = {"graph": [{"op": [{"attr": [{"key": "weight", "value": {"t": {}}}, {"key": "pass_name", "value": {}}]}]}]}
    assert ge.from_json(json.dumps(listed), "p")["graph"][0]["op"][0]["attr"] == [{"key": ["pass_name"], "value": [{}]}]


def test_json_leaves_out_and_nulls():
    op = {"name": "n", "id": None, "input": None, "attr": [{"key": "origin_shape", "value": None}, None]}
    (graph,) = ge.ge_graphs(ge.from_json(json.dumps({"graph": [{"op": [op, None]}], "attr": None}), "p"), "p")
    assert [(node.name, node.order, node.inputs) for node in graph.nodes] == [("n", 0, ())]


@pytest.mark.parametrize("kind", [1, "VT_LIST_STRING", None])
def test_json_value_types_as_number_or_name(kind):
    attribute = {"key": "_datadump_original_op_names", "value": {"list": {"val_type": kind, "s": ["a"]}}}
    tree = ge.from_json(json.dumps({"graph": [{"op": [{"name": "n", "attr": [attribute]}]}]}), "p")
    assert ge.ge_graphs(tree, "p")[0].nodes[0].originals == ("a",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"graph": 5},
        {"graph": "x"},
        {"graph": [5]},
        {"graph": [[]]},
        {"graph": [[{"op": []}]]},
        {"graph": {"op": "x"}},
        {"graph": {"name": {}}},
        {"graph": {"op": [{"name": 5}]}},
        {"graph": {"op": [{"id": "x"}]}},
        {"graph": {"op": [{"id": 1.5}]}},
        {"graph": {"op": [{"input": [5]}]}},
        {"graph": {"op": [{"input": "no index"}]}},
        {"graph": {"op": [{"input": "a:" + "9" * 30}]}},
        {"graph": {"op": [{"attr": {"key": 5, "value": {}}}]}},
        {"graph": {"op": [{"attr": [{"key": "pass_name", "value": "x"}]}]}},
        {"graph": {"op": [{"attr": [{"key": "pass_name", "value": {"list": {"s": [1]}}}]}]}},
        {"graph": {"op": [{"output_desc": [{"shape": [1, 2]}]}]}},
        {"graph": {"op": [{"output_desc": [{"shape": {"dim": ["x"]}}]}]}},
    ],
    ids=json.dumps,
)
def test_wrong_types_are_dump_errors(wrong):
    with pytest.raises(DumpError, match=r"^p: not a GE graph: "):
        ge.ge_graphs(ge.from_json(json.dumps(wrong), "p"), "p")


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "line 1"),
        ('{"graph": [\n}', "line 2"),
        ("[]", "not an object"),
        ("5", "not an object"),
        ('{"key": "x", "value": 1}', "not an object"),  # an attribute alone, which is let go of
        ('{"id": ' + "9" * 5000 + "}", "digits"),
        ('{"id": NaN}', "NaN"),
        ('{"a": ' * 100_000, "nested too deep"),
        ("[" * 100_000, "nested too deep"),
    ],
    ids=range(9),
)
def test_broken_json_is_a_dump_error(text, words):
    with pytest.raises(DumpError, match=words):
        ge.from_json(text, "p")


def test_half_characters_of_json_are_shown():
    (graph,) = ge.ge_graphs(ge.from_json('{"graph": {"name": "a\\ud800\\u00e9", "op": []}}', "p"), "p")
    assert graph.name == "a\\ud800é"


FIELDS = "graph op name id input attr key value list s i b input_desc output_desc shape dim layout dtype".split()
KEYS = sorted(ge._WANTED)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(KEYS))
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)
)


@given(JSON)
def test_any_json_is_graphs_or_a_dump_error(value):
    try:
        assert isinstance(ge.ge_graphs(ge.from_json(json.dumps({"graph": value}), "p"), "p"), list)
    except DumpError:
        pass


TEXT = (
    'graph { op { name: "n" id: 1 input: "a:0" input_desc { shape { dim: 2 } layout: "X" } '
    + words("pass_name", "A")
    + "}}"
)


@given(st.integers(0, len(TEXT)), st.integers(0, 30), st.text("{}[]:\"' 0a", max_size=3))
def test_a_damaged_text_is_graphs_or_a_dump_error(at, length, damage):
    try:
        text = TEXT[:at] + damage + TEXT[at + length :]
        assert isinstance(ge.ge_graphs(parse(text, "p", ge.is_relevant), "p"), list)
    except DumpError:
        pass
