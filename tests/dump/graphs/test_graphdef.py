"""TensorFlow graphs: order of execution, edges, what tfdbg put in, text and wire format."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump import graphs
from npucmp.dump.graphs import graphdef
from npucmp.dump.graphs.graph import merge_graphs
from npucmp.dump.readers.protobuf import Cursor
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.textproto import parse
from npucmp.errors import DumpError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "tf" / "golden"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared files are not beside this checkout")


def as_text(nodes):
    """GraphDef text of {name: (op, inputs)}."""
    return " ".join(
        f'node {{ name: "{name}" op: "{op}" ' + " ".join(f'input: "{one}"' for one in inputs) + "}"
        for name, (op, inputs) in nodes.items()
    )


def of(**nodes):
    """The graph of name="Op input input"."""
    split = {name: (words.split()[0], words.split()[1:]) for name, words in nodes.items()}
    return graphdef.graphdef_graphs(parse(as_text(split), "p"), "p")[0]


def names(graph):
    return "".join(node.name for node in graph.nodes)


@pytest.mark.parametrize(
    "nodes, order",
    [
        ({"c": "Add a b", "a": "Const", "b": "Const"}, "abc"),
        ({"b": "Relu a", "a": "Const", "d": "Relu c", "c": "Const"}, "abcd"),
        ({"b": "NoOp ^a", "a": "Const"}, "ab"),
        ({"b": "Add a a:1 ^a", "a": "Const"}, "ab"),
        ({"a": "Relu missing", "b": "Const"}, "ab"),
        ({"a": "Relu a", "b": "Const"}, "ba"),  # its own reader
        ({"c": "Relu b", "b": "Relu c", "a": "Const"}, "acb"),
        ({"e": "Exit s", "s": "Switch m", "n": "NextIteration s:1", "m": "Merge i n", "i": "Enter"}, "imsen"),
    ],
)
def test_order_is_topological_then_that_of_the_file(nodes, order):
    graph = of(**nodes)
    assert names(graph) == order
    assert [node.order for node in graph.nodes] == list(range(len(order)))


EDGES = st.lists(st.lists(st.integers(0, 11), max_size=4), min_size=12, max_size=12)


@given(EDGES)
def test_any_graph_keeps_all_nodes(edges):
    graph = of(**{f"n{i}": " ".join(["Op", *(f"n{j}" for j in before)]) for i, before in enumerate(edges)})
    assert sorted(node.name for node in graph.nodes) == sorted(f"n{i}" for i in range(12))


@given(EDGES, st.permutations(range(12)))
def test_a_graph_without_circles_runs_producers_first(edges, order):
    inputs = {i: [j for j in before if j < i] for i, before in enumerate(edges)}
    graph = of(**{f"n{i}": " ".join(["Op", *(f"n{j}" for j in inputs[i])]) for i in order})
    place = {node.name: node.order for node in graph.nodes}
    assert all(place[f"n{j}"] < place[f"n{i}"] for i in inputs for j in inputs[i])


def test_edges():
    (_, _, node) = of(a="Split", b="Const", c="Op a a:2 ^b ^a").nodes
    assert (node.inputs, node.controls) == ((("a", 0), ("a", 2)), ("b", "a"))
    assert (node.op_type, node.originals, node.ports_in, node.ports_out) == ("Op", None, (), ())


def test_what_the_debugger_put_in_is_taken_out():
    nodes = {
        "a": ("Split", []),
        "__copy_a_1": ("CopyHost", ["a:1"]),
        "__dbg_a:1_0_DebugIdentity": ("DebugIdentity", ["__copy_a_1"]),
        "b": ("Relu", ["__copy_a_1", "^__dbg_a:1_0_DebugIdentity", "^__copy_a_1"]),
        "__copy_mine": ("Relu", ["b"]),
        "__dbg_mine": ("Relu", ["__copy_mine"]),
    }
    (graph,) = graphdef.graphdef_graphs(parse(as_text(nodes), "p"), "p")
    assert [node.name for node in graph.nodes] == ["a", "b", "__copy_mine", "__dbg_mine"]
    assert (graph.nodes[1].inputs, graph.nodes[1].controls) == ((("a", 1),), ("a",))
    assert graph.nodes[3].inputs == (("__copy_mine", 0),)


def test_copies_of_each_other_end():
    graph = of(
        __copy_a="Copy __copy_b", __copy_b="Copy __copy_a", c="Relu __copy_a", __copy_d="Copy", e="Relu __copy_d"
    )
    assert names(graph) == "ce"


@shared
def test_real_text():
    (graph,) = graphs.load_graphs(SHARED / "graph.pbtxt")
    assert len(graph.nodes) == 453
    conv = merge_graphs([graph]).node("resnet_conv1_Conv2D")
    assert (conv.name, conv.inputs) == (
        "resnet/conv1/Conv2D",
        (("input", 0), ("resnet/conv1/Conv2D/ReadVariableOp", 0)),
    )
    place = {node.name: node.order for node in graph.nodes}
    assert all(place[name] < node.order for node in graph.nodes for name, _ in node.inputs)


def event_graph(path):
    """The GraphDef in the Event of a file: field 4."""
    with open_regular(str(path)) as file:
        cursor = Cursor(file)
        (field,) = (field for field in cursor.fields(0, file.size) if field.number == 4)
        return graphdef.from_wire(cursor, field.start, field.end, path)


@shared
def test_real_wire():
    (path,) = SHARED.glob("tfdbg_raw/run_*/_tfdbg_device_*/_tfdbg_graph_hash*")
    graph = event_graph(path)
    assert not [node.name for node in graph.nodes if node.name.startswith(("__copy_", "__dbg_"))]
    assert merge_graphs([graph]).by_name.get("resnet/block_0/add").inputs == (
        ("resnet/pool1", 0),
        ("resnet/block_0/bn2/FusedBatchNormV3", 0),
    )
    assert all(
        merge_graphs([graph]).by_name.get(name)
        for node in graph.nodes
        for name in [*node.controls, *(one for one, _ in node.inputs)]
    )
    (written,) = graphs.load_graphs(SHARED / "graph.pbtxt")
    for node in graph.nodes:
        same = merge_graphs([written]).by_name.get(node.name)
        assert same is None or same.op_type == node.op_type


def field(number, data):
    """A wire field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(data)]) + data


def wire(nodes):
    messages = (field(1, n) + field(2, op) + b"".join(field(3, one) for one in inputs) for n, op, inputs in nodes)
    return b"".join(field(1, message + field(5, b"attr")) for message in messages) + field(4, b"\x08\x01")


def read_wire(tmp_path, data, end=None):
    path = tmp_path / "graph"
    path.write_bytes(data)
    with open_regular(str(path)) as file:
        return graphdef.from_wire(Cursor(file), 0, file.size if end is None else end, path)


WIRE = wire([(b"b", b"Relu", [b"a:1", b"^c"]), (b"a", b"Split", []), (b"c", b"NoOp", [])])


def test_wire(tmp_path):
    graph = read_wire(tmp_path, WIRE)
    assert names(graph) == "acb"
    assert graph.path == str(tmp_path / "graph")
    assert graph.nodes[2][:5] == ("b", "Relu", 2, (("a", 1),), ("c",))


def test_every_prefix_of_a_wire_is_fewer_nodes_or_a_dump_error(tmp_path):
    for end in range(len(WIRE)):
        try:
            assert len(read_wire(tmp_path, WIRE, end).nodes) <= 3
        except DumpError:
            pass


@given(st.binary(max_size=60))
def test_any_bytes_are_a_graph_or_a_dump_error(tmp_path_factory, data):
    try:
        read_wire(tmp_path_factory.getbasetemp(), data)
    except DumpError:
        pass


@pytest.mark.parametrize("text", ["node: 5", "node { name: 5 }", "node { input: 1 }", "node { op { } }"])
def test_wrong_types_are_dump_errors(text):
    with pytest.raises(DumpError, match=r"^p: not a GraphDef: "):
        graphdef.graphdef_graphs(parse(text, "p"), "p")
